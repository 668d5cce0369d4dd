"""Field types for names that Kubernetes restricts, with its patterns, and for counts.

A name that Kubernetes would refuse can match nothing, or ends in a request that always fails. So the configuration
refuses it when it is read.
"""

from typing import Annotated, Final

from pydantic import Field

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_VALUE: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

DNS_LABEL: Final = f"^{_LABEL}$"
DNS_SUBDOMAIN: Final = rf"^{_LABEL}(\.{_LABEL})*$"
QUALIFIED_NAME: Final = rf"^({_LABEL}(\.{_LABEL})*/)?{_VALUE}$"
LABEL_VALUE: Final = f"^({_VALUE})?$"
NAMESPACE_PATTERN: Final = r"^[-a-z0-9*?!\[\]]+$"
DOMAIN_PATH: Final = r"^[!-.0-~]+(/[!-.0-~]+)*$"
HOST_ADDRESS: Final = r"^[-A-Za-z0-9.:%_]*$"
FILE_PATH: Final = r"^[^\x00]*$"

RULES: Final = {
    DNS_LABEL: "lower-case letters, digits and '-', with a letter or digit at both ends",
    DNS_SUBDOMAIN: "lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part",
    QUALIFIED_NAME: "a name of at most 63 letters, digits, '-', '_' and '.', perhaps after a DNS subdomain and '/'",
    LABEL_VALUE: "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    NAMESPACE_PATTERN: "a namespace such as team-a, or a pattern such as team-*",
    DOMAIN_PATH: "a name such as leaf-1 or a path such as spine-1/leaf-1, without spaces",
    HOST_ADDRESS: "an IP address, or a host name without spaces",
    FILE_PATH: "a text without null characters",
}
"""What a text must be to match a pattern."""

DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""Name of a namespace."""
DnsSubdomain = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=253)]
"""Name of most objects."""
QualifiedName = Annotated[str, Field(pattern=QUALIFIED_NAME, max_length=317)]
"""Key of a label or taint, name of a resource or condition."""
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
"""Value of a label, which may be empty."""
NamespacePattern = Annotated[str, Field(pattern=NAMESPACE_PATTERN, max_length=253)]
"""Name of a namespace, or a shell pattern of names."""
Domain = Annotated[str, Field(pattern=DOMAIN_PATH, max_length=1024)]
"""Name or path of a domain of the fabric."""
HostAddress = Annotated[str, Field(pattern=HOST_ADDRESS, max_length=253)]
"""An IP address or a host name to listen on; empty for all addresses."""
FilePath = Annotated[str, Field(pattern=FILE_PATH, max_length=4096)]
"""Path of a file or folder; empty for none."""

MAX_COUNT: Final = 1_000_000
"""Maximum nodes, pods, GPUs or leaves that a limit may name: above any cluster, and far below an overflow."""
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""A number of nodes, pods, GPUs or leaves that limits something."""
