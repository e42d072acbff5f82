from django.contrib import admin
from django.urls import path
from payments.views import pay_invoice

urlpatterns = [
    path("admin/", admin.site.urls),
    path("invoices/<int:invoice_id>/pay", pay_invoice),
]
