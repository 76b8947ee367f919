//! Whether the standard variables of OpenTelemetry ask for traces. What else they say, its SDK reads itself.

use std::time::Duration;

/// How long a call of the collector may take unless a variable says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether traces are to be sent, and how long a call of the collector may take then. The error is a line for the log: the
/// service runs without them.
pub fn traces(env: &[(String, String)]) -> Result<Option<Duration>, String> {
    let given = |name: &str| env.iter().find(|(n, text)| n == name && !text.is_empty()).map(|(_, text)| text.as_str());
    let is_off = given("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
        || given("OTEL_TRACES_EXPORTER") == Some("none");
    let endpoint = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| given("OTEL_EXPORTER_OTLP_ENDPOINT"));
    if is_off || endpoint.is_none() {
        return Ok(None);
    }
    if given("OTEL_TRACES_EXPORTER").is_some_and(|text| text != "otlp") {
        return Err("no traces: OTEL_TRACES_EXPORTER may be otlp or none".to_owned());
    }
    let protocol = "OTEL_EXPORTER_OTLP_PROTOCOL";
    let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol];
    match protocols.into_iter().find_map(|name| Some((name, given(name)?))) {
        None | Some((_, "http/protobuf")) => {
            let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
            let given = names.into_iter().find_map(|name| given(name)?.parse().ok());
            Ok(Some(given.map_or(TIMEOUT, Duration::from_millis)))
        }
        Some((name, _)) => Err(format!("no traces: {name} may be http/protobuf only (a collector's port 4318)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_switches_traces_on_and_the_standard_switches_off() {
        const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        const TRACES_AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/x");
        for (env, wanted) in [
            (&[][..], Some(false)),
            (&[("OTEL_SERVICE_NAME", "x")], Some(false)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], Some(false)),
            (&[AT], Some(true)),
            (&[TRACES_AT], Some(true)),
            (&[AT, ("OTEL_SDK_DISABLED", "TRUE")], Some(false)),
            (&[AT, ("OTEL_SDK_DISABLED", "false")], Some(true)),
            (&[AT, ("OTEL_TRACES_EXPORTER", "none")], Some(false)),
            (&[AT, ("OTEL_TRACES_EXPORTER", "otlp")], Some(true)),
            (&[AT, ("OTEL_TRACES_EXPORTER", "zipkin")], None),
            (&[AT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], None),
            (&[AT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], Some(true)),
            (
                &[AT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")],
                Some(true),
            ),
        ] {
            let owned: Vec<_> = env.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
            assert_eq!(traces(&owned).ok().map(|on| on.is_some()), wanted, "{env:?}");
        }
        let env = [AT, ("OTEL_EXPORTER_OTLP_TIMEOUT", "500")].map(|(n, t)| (n.to_owned(), t.to_owned()));
        assert_eq!(traces(&env), Ok(Some(Duration::from_millis(500))));
    }
}
