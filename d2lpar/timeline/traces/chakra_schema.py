"""The schema of MLCommons' Chakra execution traces, version 1.0, as far as traces here need it.

A file is a row of messages of Protocol Buffers, each after its length as a varint:
`GlobalMetadata`, then a `Node` for each step. Numbers and types of fields are those of et_def.proto
(github.com/mlcommons/chakra, schema/protobuf). The library `protobuf` is imported when a trace is
written, as nothing else needs it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, BinaryIO

from ... import requirement

VERSION = "1.0.0"
METADATA_NODE, COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 1, 4, 5, 6, 7
COLLECTIVES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
    "all_to_all": 6, "reduce_scatter": 7,
    "barrier": 0,  # c10d's is an all-reduce of one number
}  # fmt: skip
# Of each message: its fields' names, with their numbers and types; "*" says that it is repeated.
MESSAGES = {
    "AttributeProto": {
        "name": (1, "string"), "doc_string": (2, "string"), "int32_val": (7, "int32"),
        "int64_val": (9, "int64"), "uint64_val": (13, "uint64"), "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "*AttributeProto")},
    "IOInfo": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "enum"),
        "ctrl_deps": (4, "*uint64"), "data_deps": (5, "*uint64"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "inputs": (8, "IOInfo"), "outputs": (9, "IOInfo"), "attr": (10, "*AttributeProto"),
    },
}  # fmt: skip
PACKAGE = "ChakraProtoMsg"
NODE_TYPES = {
    "INVALID_NODE": 0, "METADATA_NODE": METADATA_NODE, "MEM_LOAD_NODE": 2, "MEM_STORE_NODE": 3,
    "COMP_NODE": COMP_NODE, "COMM_SEND_NODE": COMM_SEND_NODE, "COMM_RECV_NODE": COMM_RECV_NODE,
    "COMM_COLL_NODE": COMM_COLL_NODE,
}  # fmt: skip


@lru_cache(1)
def messages() -> dict[str, Any]:
    """The classes of the messages, by their names. Raises ImportError without `protobuf`."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError(
            "Chakra traces are written with the library protobuf: "
            f'pip install "{requirement("traces")}"'
        ) from error
    file = descriptor_pb2.FileDescriptorProto(
        name="d2lpar/chakra.proto", package=PACKAGE, syntax="proto3"
    )
    _describe_node_types(file.enum_type.add())
    for name, fields in MESSAGES.items():
        _describe(file.message_type.add(), name, fields)
    pool = descriptor_pool.DescriptorPool()  # of its own: others may have the same names
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in MESSAGES)
    return {d.name: message_factory.GetMessageClass(d) for d in found}


def _describe_node_types(enum: Any) -> None:
    enum.name = "NodeType"
    for name, number in NODE_TYPES.items():
        enum.value.add(name=name, number=number)


def _describe(message: Any, name: str, fields: dict[str, tuple[int, str]]) -> None:
    message.name = name
    if name == "AttributeProto":
        message.oneof_decl.add(name="value")
    for field_name, (number, kind) in fields.items():
        field = message.field.add(name=field_name, number=number)
        field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
        kind = kind.removeprefix("*")
        if field_name.endswith("_val"):
            field.oneof_index = 0  # of several kinds of value an attribute has one
        if kind in MESSAGES:
            field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        elif kind == "enum":
            field.type, field.type_name = field.TYPE_ENUM, f".{PACKAGE}.NodeType"
        else:
            field.type = getattr(field, f"TYPE_{kind.upper()}")


def write(file: BinaryIO, message: Any) -> None:
    """Write a message after its length."""
    content = message.SerializeToString()
    file.write(varint(len(content)))
    file.write(content)


def varint(number: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(0x80 | number & 0x7F)
        number >>= 7
    found.append(number)
    return bytes(found)
