"""Files of the tree of AMD's kernel driver, in its format: two sockets, GPUs of each, links of XGMI and PCIe."""

CPU = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nlocation_id 0\ndomain 0\n"
GPU = """cpu_cores_count 0
simd_count 416
gfx_target_version {version}
location_id {location}
domain 0
unique_id {unique}
"""
LINK = "type {kind}\nnode_from 0\nnode_to {target}\nweight {weight}\nmin_bandwidth 0\nmax_bandwidth {speed}\n"


def kfd_files(version: int = 90_010) -> dict[str, str]:
    """Return the files of an MI210 node: CPUs 0 and 1, GPUs 2 to 5, of which 2 and 3, and 4 and 5 are bridged."""
    files = {"nodes/0/properties": CPU, "nodes/1/properties": CPU}
    for number, location in zip((2, 3, 4, 5), (0x4100, 0x4300, 0x8500, 0xC600), strict=True):
        files[f"nodes/{number}/properties"] = GPU.format(version=version, location=location, unique=100 + number)
        files[f"nodes/{number}/mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {64 << 30}\nflags 0\n"
        socket, peer = (0 if number < 4 else 1), number ^ 1
        files[f"nodes/{number}/io_links/0/properties"] = LINK.format(kind=2, target=socket, weight=20, speed=0)
        files[f"nodes/{number}/io_links/1/properties"] = LINK.format(kind=11, target=peer, weight=15, speed=100_000)
        for link, other in enumerate({2, 3, 4, 5} - {number, peer}):
            files[f"nodes/{number}/p2p_links/{link}/properties"] = LINK.format(kind=2, target=other, weight=72, speed=0)
    return files
