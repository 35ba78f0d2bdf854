"""Say of a job that runs who waits for whom: `look` reads its processes on each node, `verdict` judges, `job_nodes` finds the nodes."""
