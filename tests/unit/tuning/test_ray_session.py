"""What the processes of a session inherit."""

from __future__ import annotations

from ray.core.generated.common_pb2 import JobConfig

from rlexp.tuning.ray_session import job_without_folders


def test_processes_of_a_job_do_not_search_the_current_folder_for_modules() -> None:
    job = job_without_folders()
    job._py_driver_sys_path.append("/where/the/command/was/started")
    sent = JobConfig.FromString(job._serialize())
    assert list(sent.py_driver_sys_path) == []
