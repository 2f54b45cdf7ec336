//! Telemetry: streams, `GpuNode` status, metrics, health.
