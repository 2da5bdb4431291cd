"""The contract: generated code is current, and no number on the wire moves unnoticed.

After a deliberate change: make proto && python tests/test_protos.py > tests/proto_fields.txt
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from paceline.codec import round_from_pb
from paceline.rounds import PlainReason, TokenSource
from paceline.v1 import drafter_pb2, gateway_pb2, tokens_pb2, verifier_pb2

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "tests" / "proto_fields.txt"
MODULES = (drafter_pb2, gateway_pb2, tokens_pb2, verifier_pb2)
TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in vars(FieldDescriptor)
    if name.startswith("TYPE_")
}


def fields() -> Iterator[str]:
    """One line per field, enum value and method: what a peer of another version relies on."""
    for module in MODULES:
        file = module.DESCRIPTOR
        for message in file.message_types_by_name.values():
            yield from _message(message)
        for enum in file.enum_types_by_name.values():
            yield from _enum(enum)
        for service in file.services_by_name.values():
            for method in service.methods:
                sent = "stream " * method.client_streaming + method.input_type.name
                got = "stream " * method.server_streaming + method.output_type.name
                yield f"{service.full_name}.{method.name}({sent}) returns ({got})"


def _message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        kind = TYPES[field.type]
        if field.message_type is not None:
            kind = field.message_type.full_name
        elif field.enum_type is not None:
            kind = field.enum_type.full_name
        label = "repeated " if field.is_repeated else ""
        group = field.containing_oneof
        if group is not None:
            label = "optional " if group.name.startswith("_") else f"oneof {group.name} "
        yield f"{message.full_name}.{field.name} = {field.number} {label}{kind}"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield from _enum(enum)


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name}.{value.name} = {value.number}"


def test_no_number_on_the_wire_has_moved():
    recorded = SNAPSHOT.read_text().splitlines()
    current = list(fields())
    assert sorted(set(recorded) - set(current)) == [], "gone from the protos, or changed"
    assert sorted(set(current) - set(recorded)) == [], "not recorded in tests/proto_fields.txt"
    assert recorded == current


def test_generated_code_is_current(tmp_path: Path):
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", *outputs, *protos],
        cwd=ROOT,
        check=True,
    )
    fresh = {path.name: path.read_text() for path in (tmp_path / "paceline" / "v1").iterdir()}
    generated = {path.name: path.read_text() for path in (ROOT / "paceline" / "v1").glob("*_pb2*")}
    stale = sorted(
        name for name in fresh.keys() | generated.keys() if fresh.get(name) != generated.get(name)
    )
    assert stale == [], "run: make proto"


if __name__ == "__main__":
    print("\n".join(fields()))


def test_what_only_a_newer_peer_knows_is_unspecified():
    report = round_from_pb(tokens_pb2.RoundReport(round=1, source=999, plain_reason=999))
    assert report.source is TokenSource.UNSPECIFIED
    assert report.plain_reason is PlainReason.UNSPECIFIED
