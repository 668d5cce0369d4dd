"""``python -m topo_scheduler`` is the ``topo-scheduler`` command."""

from topo_scheduler.cli.main import main

main()
