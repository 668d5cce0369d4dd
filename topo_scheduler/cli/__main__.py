"""``python -m topo_scheduler.cli``."""

from topo_scheduler.cli.main import main

main(prog_name="topo-scheduler")
