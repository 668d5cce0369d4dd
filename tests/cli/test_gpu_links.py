"""``topology`` shows how GPUs of a node are linked where that differs, and which pods have which of them."""

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.cli import gpu_links
from topo_scheduler.cli.views import NodeView, tree

V100 = "Tesla-V100-SXM2-32GB"
H100 = "NVIDIA-H100-80GB-HBM3"


def node(name: str, model: str, gpus: int = 8, **labels: str) -> Node:
    return make_node(name, "s/l", gpus=gpus, labels={"nvidia.com/gpu.product": model, **labels})


def views(d: Driver, *pods: Pod) -> dict[str, NodeView]:
    root = tree(d.engine.world, list(pods))
    assert root is not None
    return {view.name: view for view in root.all_nodes()}


def rows(view: NodeView) -> list[str]:
    return [row.plain for row in gpu_links.rows(view, lambda namespace, name: "")]


def test_a_mesh_has_a_row_of_links_and_one_of_pods() -> None:
    d = Driver([node("mesh", V100)])
    pods = [make_pod("worker", gpus=2), make_pod("notebook", gpus=1)]
    d.run(*pods)
    links, holders = rows(views(d, *pods)["mesh"])
    assert links == "NVLink x2 0-3 0-4 1-2 1-5 2-3 4-7 5-6 6-7, x1 0-1 0-2 1-3 2-6 3-7 4-5 4-6 5-7"
    by_pod = dict(part.rsplit(" ", 1)[::-1] for part in holders.removesuffix("  (predicted)").split(", GPU"))
    assert holders.endswith("  (predicted)")
    assert len(holders) <= 80
    assert set(by_pod) == {"worker", "notebook"}


def test_the_row_names_the_gpus_that_are_written_on_the_pods() -> None:
    d = Driver([node("mesh", V100)])
    pod = make_pod("worker", gpus=2)
    d.run(pod)
    (view,) = views(d, pod).values()
    (tenant,) = view.tenants
    assert ",".join(map(str, tenant.gpu_indexes)) == pod.metadata.annotations["topology.scheduler/predicted-gpus"]


def test_nodes_with_equal_links_have_one_row_of_links() -> None:
    board = "neuronetes.io/gpu-topology"
    nodes = [
        *(node("switched", H100), node("pcie", "NVIDIA-L40S"), make_node("unknown", "s/l", gpus=8)),
        *(node("amd", "AMD-Instinct-MI300X"), node("label", "NVIDIA-X", 4, **{board: "nvswitch"})),
        *(node("one", H100, 1), node("split", f"{H100}-MIG-1g.10gb", 7), node("many", H100, 17)),
        node("shared", "Tesla-T4-SHARED", 4, **{"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"}),
    ]
    known = views(Driver(nodes))
    assert {name: rows(view) for name, view in known.items()} == {
        "switched": ["GPUs 0-7 linked by NVSwitch, 900 GB/s each"],
        "pcie": ["GPUs 0-7 linked by PCIe only"],
        "unknown": ["links between GPUs unknown"],
        "amd": ["GPUs 0-7 linked by XGMI, 100 GB/s between each pair"],
        "label": ["GPUs 0-3 linked by NVSwitch, bandwidth unknown"],
        **{name: [] for name in ("one", "split", "shared")},
        "many": ["links between GPUs unknown"],
    }
    assert not list(gpu_links.rows(known["switched"], lambda namespace, name: "", every=False))


def test_the_pods_of_a_switched_node_are_named_with_their_gpus() -> None:
    d = Driver([node("switched", H100)])
    pod = make_pod("worker", gpus=2, annotations={"topology.scheduler/gpu-locality": "nvlink"})
    d.run(pod)
    assert rows(views(d, pod)["switched"])[1] == "GPUs 0, 1 worker  (predicted)"


def test_nodes_without_a_difference_say_what_they_are_as_json() -> None:
    d = Driver([node("switched", H100), node("pcie", "NVIDIA-L40S"), make_node("unknown", "s/l", gpus=8)])
    known = views(d)
    switched = gpu_links.as_json(known["switched"])["gpuLinks"]
    assert (switched["kind"], switched["switched"], switched["pairs"]) == ("NVLink", True, [])
    pcie = gpu_links.as_json(known["pcie"])["gpuLinks"]
    assert (pcie["kind"], pcie["switched"], pcie["pairs"]) == (None, False, [])
    assert gpu_links.as_json(known["unknown"]) == {}


def test_pairs_as_json_have_their_links_and_bandwidth() -> None:
    d = Driver([node("mesh", V100)])
    pairs = gpu_links.as_json(views(d)["mesh"])["gpuLinks"]["pairs"]
    assert {"gpus": [0, 3], "links": 2, "bandwidth": "100 GB/s"} in pairs
    assert len(pairs) == 16
