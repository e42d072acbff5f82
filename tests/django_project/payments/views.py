from django.db import transaction
from django.http import HttpResponse

from .models import Invoice
from .tasks import pay


@transaction.atomic
def pay_invoice(request, invoice_id):
    Invoice.objects.filter(pk=invoice_id).update(is_ordered=True)
    pay.delay_on_commit(invoice_id)
    return HttpResponse(status=202)
