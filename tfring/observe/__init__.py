"""What people see of a job: records, reports, explanations, timelines, metrics."""
