"""Real topology files of AWS, Azure and RCCL, read one by one."""

from xml.etree import ElementTree

import pytest

from tests.devices.shapes import folder, from_file
from topo_scheduler.state.devices.hardware import UNKNOWN_NUMA, HardwareError, PciePath, linked, pair_bandwidth
from topo_scheduler.state.devices.topology_xml import MAX_DEPTH, MAX_FILE_BYTES, read_topology

NO_GPUS = {"aws/g5.48xl-topo.xml": "names no GPU", "azure/ncv4-graph.xml": "begins with <graphs>"}
CLOUDS = ["aws/p4d-24xl-topo.xml", "azure/ncv4-topo.xml", "azure/ndv2-topo.xml", "azure/ndv4-topo.xml"]

SMALL = """<system version="1"><cpu numaid="{numa}"><pci busid="0000:01:00.0" class="0x060400">
<pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" sm="90">{links}</gpu></pci>
<pci busid="0000:03:00.0" class="0x030200"><gpu dev="1" sm="90">
<nvlink target="0000:02:00.0" count="{count}"/></gpu></pci>
</pci></cpu></system>"""


def _small(links: str = '<nvlink target="0000:03:00.0" count="2"/>', count: str = "2", numa: str = "1") -> str:
    return SMALL.format(links=links, count=count, numa=numa)


def test_every_real_file_has_the_gpus_links_and_nics_that_it_names() -> None:
    names = sorted(path.relative_to(folder()).as_posix() for path in folder().glob("*/*.xml"))
    assert len(names) >= 48 and {*CLOUDS, *NO_GPUS} <= set(names)
    for name in names:
        if name not in NO_GPUS:
            _check(name)


def _check(name: str) -> None:
    hardware = from_file(name)
    root = ElementTree.fromstring((folder() / name).read_text())
    named = list(root.iter("gpu"))
    addresses = {pci.get("busid", "").lower(): pci for pci in root.iter("pci") if pci.find("gpu") is not None}
    if named:
        assert len(hardware.gpus) == len(named)
        assert {gpu.bus_id for gpu in hardware.gpus} == set(addresses)
    else:
        threes = [pci for pci in root.iter("pci") if pci.get("class", "").startswith("0x0302")]
        assert [gpu.bus_id for gpu in hardware.gpus] == [pci.get("busid", "").lower() for pci in threes]
    pairs = pair_bandwidth(hardware)
    assert (pairs == pairs.T).all() and (pairs.diagonal() == 0).all()
    index_of = {gpu.bus_id: gpu.index for gpu in hardware.gpus}
    count_of = {(link.first, link.second): link.count for link in hardware.links}
    for address, pci in addresses.items():
        gpu = pci.find("gpu")
        assert gpu is not None
        assert int(gpu.get("dev", "")) == index_of[address]
        for link in gpu.iter("xgmi"):
            pair = sorted((index_of[address], index_of[link.get("target", "").lower()]))
            assert count_of[pair[0], pair[1]] == int(link.get("count", ""))
            assert pairs[pair[0], pair[1]] == 50_000 * int(link.get("count", ""))
    assert len(hardware.nics) == len(list(root.iter("net"))) or not list(root.iter("net"))
    numa_of = {pci.get("busid", "").lower(): cpu.get("numaid") for cpu in root.iter("cpu") for pci in cpu.iter("pci")}
    assert [str(gpu.numa_node) for gpu in hardware.gpus] == [numa_of[gpu.bus_id] for gpu in hardware.gpus]


@pytest.mark.parametrize("name", NO_GPUS)
def test_a_file_without_gpus_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(HardwareError, match=f"{NO_GPUS[name]}.*; write one with NCCL_TOPO_DUMP_FILE"):
        from_file(name)


def test_two_gpus_below_one_switch_are_closer_than_two_of_other_sockets() -> None:
    hardware = from_file("aws/p4d-24xl-topo.xml")
    assert hardware.path(0, 1) is PciePath.SWITCH
    assert hardware.path(0, 2) is PciePath.HOST_BRIDGE
    assert hardware.path(0, 4) is PciePath.SYSTEM
    assert [gpu.pcie_switch for gpu in hardware.gpus[:3]] == ["ffff:ff:01.0", "ffff:ff:01.0", "ffff:ff:02.0"]
    assert [nic.bus_id for nic in hardware.nics][:2] == ["0000:10:1b.0", "0000:20:1b.0"]
    assert hardware.nic_paths[0][:2] == (PciePath.SWITCH, PciePath.HOST_BRIDGE)


def test_links_to_a_switch_connect_every_gpu_with_every_other() -> None:
    text = _small('<nvlink target="0000:09:00.0" count="18" tclass="0x068000"/>').replace(
        '<nvlink target="0000:02:00.0" count="2"/>', '<nvlink target="0000:09:00.0" count="18" tclass="0x068000"/>'
    )
    hardware = read_topology(text)
    assert not hardware.links
    assert pair_bandwidth(hardware)[0, 1] == 450_000
    assert linked(hardware).tolist() == [0b10, 0b01]


def test_links_to_a_cpu_of_power_connect_no_gpus() -> None:
    hardware = read_topology(_small('<nvlink target="0004:04:00.0" count="3" tclass="0x068001"/>'))
    assert [gpu.switch_links for gpu in hardware.gpus] == [0, 0] and not hardware.warnings


def test_warnings_are_limited() -> None:
    links = '<nvlink target="0000:77:00.0" count="1"/>' * 100
    assert len(read_topology(_small(links)).warnings) == 32


def test_an_unknown_numa_node_is_no_error() -> None:
    assert {gpu.numa_node for gpu in read_topology(_small(numa="-1")).gpus} == {UNKNOWN_NUMA}


@pytest.mark.parametrize(
    ("links", "warning"),
    [
        ('<nvlink target="0000:02:00.0" count="12"/>', "GPU 0 (0000:02:00.0) has 12 links to itself"),
        ('<nvlink target="0000:77:00.0" count="1"/>', "GPU 0 has 1 links to '0000:77:00.0', which is no GPU"),
        ('<nvlink target="0000:03:00.0" count="4"/>', "GPU 0 has 4 links to GPU 1, but 2 in the other direction"),
    ],
)
def test_links_that_contradict_are_reported_and_the_fewer_count(links: str, warning: str) -> None:
    hardware = read_topology(_small(links))
    assert hardware.warnings[0].startswith(warning)
    assert [(link.count, link.mb_per_second) for link in hardware.links] == [(2, 50_000)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no XML"),
        ("<system", "no XML"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", "declares a document type"),
        ("<system/>", "names no GPU"),
        (_small(count="many"), "<nvlink> has count='many', which is no whole number"),
        (_small(count="-3"), "<nvlink> has count='-3'"),
        (_small(count="1001"), "which is no whole number from 0 to 1,000"),
        (_small(count="9" * 5000), "<nvlink> has count='9{40}', which"),
        (_small(numa="1e9"), "<cpu> has numaid='1e9'"),
        (_small(numa="1_0"), "<cpu> has numaid='1_0'"),
        (_small().replace("0000:01:00.0", "&#10;&#x9b;"), r"<pci> has busid='\\n\\x9b', which is no name"),
        (_small().replace("0000:01:00.0", "0" * 65), "<pci> has busid='0{64}...', which is no name"),
        (_small() + "\ud800", "no XML"),
        ('<system><cpu host_hash="0x1"/><cpu host_hash="0x2"/></system>', "describes 2 hosts; write one for each"),
        (_small().replace("</cpu>", "<nic>" + "<net/>" * 257 + "</nic></cpu>"), "257 NICs, of 256 at most"),
        (_small().replace("0000:03", "0000:02"), "two GPUs have one busid"),
        ("x" * (MAX_FILE_BYTES + 1), "4,194,304 at most"),
        (
            f"<system><cpu>{'<pci>' * (MAX_DEPTH + 2)}{'</pci>' * (MAX_DEPTH + 2)}</cpu></system>",
            "more than 32 bridges",
        ),
        ("<system><cpu>" + '<pci busid="{0}" class="0x030200"/>' * 17 + "</cpu></system>", "17 GPUs, of 16 at most"),
    ],
)
def test_bad_files_are_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        read_topology(text)
