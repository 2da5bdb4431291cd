"""An OTLP/gRPC sink in the test's process: keeps every span it is sent."""

import contextlib
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, object] = field(hash=False)
    # (trace id, span id) of each.
    links: tuple[tuple[str, str], ...] = ()


class Sink(pb_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            service=str(service),
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            start=span.start_time_unix_nano,
                            end=span.end_time_unix_nano,
                            attributes=_values(span.attributes),
                            links=tuple((k.trace_id.hex(), k.span_id.hex()) for k in span.links),
                        )
                    )
        return pb.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def _values(attributes) -> dict[str, object]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


@contextlib.contextmanager
def otlp_sink() -> Iterator[tuple[Sink, dict[str, str]]]:
    """The sink, and the environment that makes a service export to it."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    sink = Sink()
    pb_grpc.add_TraceServiceServicer_to_server(sink, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield (
            sink,
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                "OTEL_EXPORTER_OTLP_INSECURE": "true",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            },
        )
    finally:
        server.stop(None)
