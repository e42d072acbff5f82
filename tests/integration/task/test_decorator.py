"""Every form in which a singleton task can be written is locked by a worker."""

from __future__ import annotations

import uuid
from typing import Any

import celery
import pytest

from celery_redlock import (
    DuplicateTask,
)
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE
from tests.support.processes.project import Project

FORMS = [
    "bare", "shared", "of_the_app", "bound", "token_taking", "autoretrying", "with_celery_options",
    "by_base", "shared_by_base", "by_own_base", "by_base_with_a_call", "on_a_plain_base",
    "shared_on_a_plain_base", "named", "unnamed", "on_the_apps_task", "annotated",
    "decorated",
]  # fmt: skip
TTLS = {"shared": 7, "by_own_base": 9, "named": 11, "annotated": 13}
WITHOUT_THE_APPS_TASK = {"named", "unnamed"}
"""Written as classes: those build on what they say, with Celery's own Task as well."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project(
        "forms",
        task_annotations={"tests.integration.apps.forms.annotated": {"lock_ttl": 13}},
        redlock_ttl=21,
    )
    project.start_worker()
    return project


def task_of(project: Project, form: str) -> Any:
    return getattr(project.tasks, form)


# --- every form is locked -------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_task_is_locked(project: Project, key: str, form: str) -> None:
    task = task_of(project, form)
    holder = task.delay(key, key)
    run = project.run_of(holder.id)
    duplicate = task.delay(key, key)
    with pytest.raises(DuplicateTask) as caught:
        duplicate.get(timeout=PATIENCE)
    assert caught.value.holder == holder.id
    project.open(key)
    about = holder.get(timeout=PATIENCE)
    assert about["token"] >= run.token
    assert about["ttl"] == TTLS.get(form, 21)
    assert about["lock"].startswith(f"{task.name}:")
    assert len(project.notes("begin", key=key)) == (3 if form == "autoretrying" else 1)


@pytest.mark.parametrize("form", sorted(set(FORMS) - WITHOUT_THE_APPS_TASK))
def test_every_decorated_form_builds_on_the_apps_own_task_class(
    project: Project, key: str, form: str
) -> None:
    task = task_of(project, form)
    result = task.delay_on_commit(key)
    result.get(timeout=PATIENCE)
    company = project.notes("company", task_id=result.id)
    # Within the lock, and once a run.
    assert [note.token for note in company] == project.tokens(key=key)


@pytest.mark.parametrize("form", ["by_base_with_a_call", "on_a_plain_base"])
def test_a_call_of_ones_own_base_is_called_once_a_run(
    project: Project, key: str, form: str
) -> None:
    result = task_of(project, form).delay(key)
    result.get(timeout=PATIENCE)
    assert len(project.notes("before", task_id=result.id)) == 1


# --- pydantic -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(new_project: NewProject) -> Project:
    pytest.importorskip("pydantic")
    project = new_project("models")
    project.start_worker()
    return project


def test_a_task_with_pydantic_models_is_locked_by_what_is_sent(models: Project) -> None:
    key = uuid.uuid4().hex
    order = {"number": key, "lines": ["a"]}
    for task, result in (
        (models.tasks.ship, ["a", "shipped"]),
        (models.tasks.cancel, ["cancelled"]),
    ):
        gate = f"{task.name}-{key}"
        holder = task.delay(order, gate)
        models.run_of(holder.id)
        with pytest.raises(DuplicateTask):
            task.delay(order, gate).get(timeout=PATIENCE)
        models.open(gate)
        assert holder.get(timeout=PATIENCE) == {"number": key, "lines": result}


@pytest.mark.skipif(
    tuple(map(int, celery.__version__.split(".")[:2])) < (5, 7), reason="sends no models"
)
def test_a_pydantic_model_may_be_sent_as_it_is(models: Project) -> None:
    key = uuid.uuid4().hex
    order = models.tasks.Order(number=key)
    for task in (models.tasks.ship, models.tasks.cancel):
        gate = f"{task.name}-{key}"
        holder = task.delay(order, gate)
        models.run_of(holder.id)
        with pytest.raises(DuplicateTask):
            task.delay(order.model_dump(), gate).get(timeout=PATIENCE)
        models.open(gate)
        assert holder.get(timeout=PATIENCE)["number"] == key
