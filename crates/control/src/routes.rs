//! The handlers of the requests.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use conntrack::{Changes, Filter, LabelNames, Labels, UnknownLabel, format};
use engine::{
    ChangeTunableError, ChangeZonesError, EventStream, Gateway, NumberedEvent, Reported, SteerError,
};
use ruleset::probe::Probe;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::SCHEMA;
use crate::carried_settings::changed_settings;
use crate::query::{ConnectionQuery, CountQuery, EventQuery, FormatQuery, LineFormat};
use crate::refusal::Refused;
use crate::schema::{
    Balance, Buckets, ChangedSettings, Connection, Count, Datagram, Done, Dropped, Event,
    Expectation, ExpectationEvent, Moves, RecentDrops, RulesStatus, SetBalancer, SetTunable,
    SetWorkers, SetZones, Status, Tunable, Tunables, UpdateConnections, ZoneFault, Zones,
};
use crate::server::{MAX_STREAMS, Shared};
use crate::stream::{LineBody, LineSender, ReaderGone, lines};

/// Events that each worker keeps for a slow reader.
const EVENTS_AHEAD: usize = 16 * 1024;

/// Time between two checks of an event stream whether it still has a reader.
const EVENT_WAIT: Duration = Duration::from_millis(100);

/// The longest time until the thread of an evicted reader ends.
const TO_LEAVE: Duration = Duration::from_secs(1);

/// The shortest time between two rounds of the balancer, in milliseconds.
const MIN_BALANCE_INTERVAL_MS: u64 = 10;
/// The longest time between two rounds of the balancer, in milliseconds: an hour.
const MAX_BALANCE_INTERVAL_MS: u64 = 3_600_000;

pub(crate) type Answer<T> = Result<Json<T>, Refused>;
pub(crate) type QueryOf<T> = Result<Query<T>, QueryRejection>;
pub(crate) type BodyOf<T> = Result<Json<T>, JsonRejection>;

pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/buckets", get(buckets))
        .route("/v1/connections", get(list).delete(delete).patch(update))
        .route("/v1/connections/count", get(count))
        .route("/v1/datagrams", get(datagrams))
        .route("/v1/drops/recent", get(recent_drops))
        .route("/v1/events", get(events))
        .route("/v1/expectations", get(expectations).delete(forget_expectations))
        .route("/v1/expectations/events", get(expectation_events))
        .route("/v1/tunables", get(tunables))
        .route("/v1/tunables/{name}", put(set_tunable))
        .route("/v1/settings/changed", get(changed))
        .route("/v1/workers", put(set_workers))
        .route("/v1/zones", get(zones).put(set_zones))
        .merge(crate::hand_over_routes::router())
        .merge(crate::policy_routes::router())
        .merge(crate::record_routes::router())
        .merge(crate::rule_routes::router())
        .merge(crate::sync_routes::router())
        .route("/v1/balance", post(balance))
        .route("/v1/balancer", put(set_balancer))
        .fallback(async || no_such_request("path"))
        .method_not_allowed_fallback(async || no_such_request("method"))
        .with_state(shared)
}

async fn status(State(shared): State<Shared>) -> Answer<Status> {
    let (keeper, log_lines_lost) = (shared.rules.clone(), shared.log_lines_lost);
    let host_policies = (shared.host_policies)();
    call(shared, move |gateway| {
        let mut tunables = gateway.tunables().into_iter();
        let limit = tunables.find(|(tunable, _)| tunable.name == "nf_conntrack_max");
        let limit = limit.map_or(0, |(_, value)| value);
        let (status, (book, left)) =
            keeper.active_and(|| gateway.status()).map_err(unresponsive)?;
        let kernel = book.as_ref().map(|book| book.look_at_kernel()).unwrap_or_default();
        let of_kernel = kernel.warnings();
        let of_book = book.as_ref().map(|book| book.warnings()).unwrap_or_default();
        let rules = status.rules.as_ref().zip(book);
        let rules = rules.map(|(rules, book)| RulesStatus::new(rules, &book, left, kernel.chains));
        let log_lines_lost = log_lines_lost();
        let of_log = (log_lines_lost > 0).then(|| lost_lines(log_lines_lost));
        let warnings = gateway.rule_troubles().into_iter();
        let warnings = warnings.chain(of_kernel).chain(of_book).chain(of_log).collect();
        let status = Status::new(&status, limit);
        Ok(Status { rules, warnings, log_lines_lost, host_policies, ..status })
    })
    .await
}

/// A warning about missing lines of the log.
fn lost_lines(lost: u64) -> String {
    let lines = if lost == 1 { "line" } else { "lines" };
    format!(
        "{lost} {lines} of the log lost since the start, because standard error was not read in \
         time or could not be written; the log says where"
    )
}

async fn buckets(State(shared): State<Shared>) -> Answer<Buckets> {
    call(shared, |gateway| Ok(Buckets::new(&gateway.buckets().map_err(unresponsive)?))).await
}

async fn recent_drops(State(shared): State<Shared>) -> Answer<RecentDrops> {
    call(shared, |gateway| {
        let packets = gateway.recent_drops().map_err(unresponsive)?;
        Ok(RecentDrops { schema: SCHEMA, packets: packets.iter().map(Dropped::from).collect() })
    })
    .await
}

async fn count(State(shared): State<Shared>, query: QueryOf<CountQuery>) -> Answer<Count> {
    let CountQuery { zone } = parsed(query)?;
    call(shared, move |gateway| {
        let Some(zone) = zone else {
            let connections = gateway.connection_count().map_err(unresponsive)?;
            return Ok(Count { schema: SCHEMA, connections });
        };
        let status = Status::new(&gateway.status().map_err(unresponsive)?, 0);
        let of_zones = |wanted: &dyn Fn(u16) -> bool| -> u64 {
            let zones = status.zones.iter().filter(|known| wanted(known.zone));
            zones.map(|zone| zone.connections).sum()
        };
        let connections = match zone {
            0 => status.connections.saturating_sub(of_zones(&|_| true)),
            zone => of_zones(&|known| known == zone),
        };
        Ok(Count { schema: SCHEMA, connections })
    })
    .await
}

async fn zones(State(shared): State<Shared>) -> Answer<Zones> {
    call(shared, |gateway| {
        let status = gateway.status().map_err(unresponsive)?;
        Ok(Zones::new(&gateway.zones(), &gateway.interfaces(), &status))
    })
    .await
}

async fn set_zones(State(shared): State<Shared>, body: BodyOf<SetZones>) -> Answer<Done> {
    let body = parsed_body(body)?;
    call(shared, move |gateway| {
        let book = body.book(&gateway.interfaces(), gateway.zones().revision);
        let refused = |ZoneFault { place, what }| Refused::bad_request(&place, what, "correct it");
        gateway.set_zones(book.map_err(refused)?).map_err(|error| match error {
            ChangeZonesError::Zones(error) => refused(ZoneFault::of_all(error)),
            ChangeZonesError::TooMany(error) => refused(ZoneFault::of_all(error)),
            ChangeZonesError::Outdated { .. } => {
                Refused::conflict("zones", error, "look at them and try again")
            }
            error => Refused::conflict("zones", error, "see the log of the gateway"),
        })?;
        Ok(Done { schema: SCHEMA, affected: body.zones.len() as u64 })
    })
    .await
}

async fn delete(State(shared): State<Shared>, query: QueryOf<ConnectionQuery>) -> Answer<Done> {
    let filter = filter_of(&shared, &parsed(query)?)?;
    call(shared, move |gateway| {
        let affected = gateway.delete_connections(&filter).map_err(unresponsive)?;
        Ok(Done { schema: SCHEMA, affected })
    })
    .await
}

async fn update(
    State(shared): State<Shared>,
    query: QueryOf<ConnectionQuery>,
    body: BodyOf<UpdateConnections>,
) -> Answer<Done> {
    let filter = filter_of(&shared, &parsed(query)?)?;
    let body = parsed_body(body)?;
    let changes = changes_of(&shared, &body)?;
    let (timeout_s, longest) = (changes.timeout_s, flow::declared::LONGEST_TIMEOUT);
    if timeout_s.is_some_and(|seconds| u64::from(seconds) > longest) {
        let what = format!("a timeout is out of range: 0 to {longest} s");
        return Err(Refused::bad_request("timeout_s", what, "give a timeout in the range"));
    }
    call(shared, move |gateway| {
        let affected = gateway.update_connections(&filter, changes).map_err(unresponsive)?;
        Ok(Done { schema: SCHEMA, affected })
    })
    .await
}

async fn list(
    State(shared): State<Shared>,
    query: QueryOf<ConnectionQuery>,
) -> Result<Response, Refused> {
    let query = parsed(query)?;
    let filter = filter_of(&shared, &query)?;
    let names = shared.gateway.label_names();
    stream(shared, move |shared, mut lines| {
        let result = shared.gateway.connections(&filter, &mut |connection| {
            let sent = match query.format {
                LineFormat::Json => json_line(&mut lines, &Connection::new(&connection, &names)),
                LineFormat::Conntrack(extras) => {
                    text_line(&mut lines, format::ListedWith(&connection, &names, extras))
                }
            };
            if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if let Err(error) = result {
            tracing::error!("a list of connections ends early: {error}");
        }
        let _ = lines.flush();
    })
    .await
}

async fn events(
    State(shared): State<Shared>,
    query: QueryOf<ConnectionQuery>,
) -> Result<Response, Refused> {
    let query = parsed(query)?;
    let filter = filter_of(&shared, &query)?;
    let names = shared.gateway.label_names();
    let kinds = query.event_kinds().map_err(bad_filter)?;
    let subscribing = shared.gateway.clone();
    let subscribe = move || subscribing.subscribe(EVENTS_AHEAD).map_err(unresponsive);
    let source = tokio::task::spawn_blocking(subscribe).await.map_err(Refused::defect)??;
    stream(shared, move |shared, mut lines| {
        let _ = tell(&shared, source, &mut lines, |lines, numbered| {
            let conntrack::Event { kind, connection } = &numbered.event;
            if !kinds.contains(kind) || !filter.matches(connection) {
                return Ok(());
            }
            event_line(lines, query.format, numbered, &names)
        });
    })
    .await
}

/// Sends events until the reader has gone or the gateway stops.
fn tell<E: Reported>(
    shared: &Shared,
    mut source: EventStream<E>,
    lines: &mut LineSender,
    mut each: impl FnMut(&mut LineSender, &NumberedEvent<E>) -> Result<(), ReaderGone>,
) -> Result<(), ReaderGone> {
    while !shared.stop.has_begun() {
        let mut next = source.next_within(EVENT_WAIT);
        while let Some(numbered) = next {
            each(lines, &numbered)?;
            next = source.try_next();
        }
        // Flushing also finds out whether the reader has gone.
        lines.flush()?;
    }
    Ok(())
}

async fn expectation_events(
    State(shared): State<Shared>,
    query: QueryOf<EventQuery>,
) -> Result<Response, Refused> {
    let query = parsed(query)?;
    let kinds = query.event_kinds().map_err(bad_filter)?;
    let subscribing = shared.gateway.clone();
    let subscribe = move || subscribing.subscribe_expectations(EVENTS_AHEAD).map_err(unresponsive);
    let source = tokio::task::spawn_blocking(subscribe).await.map_err(Refused::defect)??;
    stream(shared, move |shared, mut lines| {
        let _ = tell(&shared, source, &mut lines, |lines, numbered| {
            if !kinds.contains(&numbered.event.kind) {
                return Ok(());
            }
            match query.format {
                LineFormat::Json => json_line(lines, &ExpectationEvent::from(numbered)),
                LineFormat::Conntrack(_) => {
                    lost_line(lines, numbered.lost)?;
                    text_line(lines, format::ReportedExpectation(&numbered.event))
                }
            }
        });
    })
    .await
}

async fn expectations(
    State(shared): State<Shared>,
    query: QueryOf<FormatQuery>,
) -> Result<Response, Refused> {
    let FormatQuery { format } = parsed(query)?;
    stream(shared, move |shared, mut lines| {
        shared.gateway.expectations(&mut |expected| {
            let sent = match format {
                LineFormat::Json => json_line(&mut lines, &Expectation::from(&expected)),
                LineFormat::Conntrack(_) => {
                    text_line(&mut lines, format::ListedExpectation(&expected))
                }
            };
            if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let _ = lines.flush();
    })
    .await
}

async fn forget_expectations(State(shared): State<Shared>) -> Answer<Done> {
    call(shared, |gateway| {
        let affected = gateway.forget_expectations().map_err(unresponsive)?;
        Ok(Done { schema: SCHEMA, affected })
    })
    .await
}

async fn datagrams(State(shared): State<Shared>) -> Result<Response, Refused> {
    stream(shared, move |shared, mut lines| {
        let result = shared.gateway.datagrams(&mut |view| match json_line(
            &mut lines,
            &Datagram::from(&view),
        ) {
            Ok(()) => ControlFlow::Continue(()),
            Err(ReaderGone) => ControlFlow::Break(()),
        });
        if let Err(error) = result {
            tracing::error!("a list of datagrams ends early: {error}");
        }
        let _ = lines.flush();
    })
    .await
}

async fn tunables(State(shared): State<Shared>) -> Answer<Tunables> {
    call(shared, |gateway| {
        let tunables = gateway.tunables();
        let tunables = tunables.iter().map(|(tunable, value)| Tunable::new(tunable, *value));
        Ok(Tunables { schema: SCHEMA, tunables: tunables.collect() })
    })
    .await
}

async fn set_tunable(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    body: BodyOf<SetTunable>,
) -> Answer<Done> {
    let value = parsed_body(body)?.value;
    call(shared, move |gateway| {
        gateway.set_tunable(&name, value).map_err(|error| match error {
            ChangeTunableError::Refused(flow::SetTunableError::Unknown { .. }) => {
                Refused::not_found(&name, error, "see `stateway tunable list`")
            }
            ChangeTunableError::Refused(flow::SetTunableError::OutOfRange { .. }) => {
                Refused::bad_request(&name, error, "give a value in the range")
            }
            ChangeTunableError::Unresponsive(_) => {
                Refused::conflict(&name, error, "see the log of the gateway")
            }
        })?;
        Ok(Done { schema: SCHEMA, affected: 1 })
    })
    .await
}

async fn changed(State(shared): State<Shared>) -> Answer<ChangedSettings> {
    look(move || {
        let (_, left) = shared.rules.active(Instant::now());
        Ok(ChangedSettings {
            trial_s: left.map(|left| left.as_secs()),
            ..changed_settings(&shared.gateway)
        })
    })
    .await
}

async fn set_workers(State(shared): State<Shared>, body: BodyOf<SetWorkers>) -> Answer<Moves> {
    let SetWorkers { workers } = parsed_body(body)?;
    call(shared, move |gateway| {
        let moves = gateway.set_workers(workers).map_err(not_steered)?;
        Ok(Moves::done(&moves))
    })
    .await
}

async fn balance(State(shared): State<Shared>, body: BodyOf<Balance>) -> Answer<Moves> {
    let Balance { dry_run } = parsed_body(body)?;
    call(shared, move |gateway| {
        let plan = gateway.balance(dry_run).map_err(not_steered)?;
        Ok(Moves::planned(&plan, dry_run))
    })
    .await
}

async fn set_balancer(State(shared): State<Shared>, body: BodyOf<SetBalancer>) -> Answer<Done> {
    let SetBalancer { interval_ms } = parsed_body(body)?;
    let allowed = MIN_BALANCE_INTERVAL_MS..=MAX_BALANCE_INTERVAL_MS;
    if let Some(given) = interval_ms.filter(|interval| !allowed.contains(interval)) {
        let what = format!("an interval of {given} ms is out of range: 10 ms to one hour");
        return Err(Refused::bad_request("interval_ms", what, "give an interval in the range"));
    }
    call(shared, move |gateway| {
        gateway.set_balance(interval_ms.map(Duration::from_millis));
        Ok(Done { schema: SCHEMA, affected: 1 })
    })
    .await
}

/// Looks at the gateway on a thread that may block, also while it hands over: the new process asks.
pub(crate) async fn look<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Answer<T> {
    tokio::task::spawn_blocking(work).await.map_err(Refused::defect)?.map(Json)
}

/// Calls the gateway on a thread that may block.
pub(crate) async fn call<T: Send + 'static>(
    shared: Shared,
    work: impl FnOnce(&Gateway) -> Result<T, Refused> + Send + 'static,
) -> Answer<T> {
    let work = move || {
        let _open = shared.gate.pass()?;
        work(&shared.gateway)
    };
    tokio::task::spawn_blocking(work).await.map_err(Refused::defect)?.map(Json)
}

/// Answers with the lines that `work` produces on a thread of its own.
async fn stream(
    shared: Shared,
    work: impl FnOnce(Shared, LineSender) + Send + 'static,
) -> Result<Response, Refused> {
    let body = produce(shared, work).await?;
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response())
}

/// The body that `work` produces on a thread of its own.
pub(crate) async fn produce(
    shared: Shared,
    work: impl FnOnce(Shared, LineSender) + Send + 'static,
) -> Result<LineBody, Refused> {
    let permit = permit_for_stream(&shared).await?;
    let (sender, body) = lines();
    tokio::task::spawn_blocking(move || {
        work(shared, sender);
        drop(permit);
    });
    Ok(body)
}

/// Takes a place among the streams. If there is none, stalled readers are evicted.
async fn permit_for_stream(shared: &Shared) -> Result<OwnedSemaphorePermit, Refused> {
    let permit = || shared.streams.clone().acquire_owned();
    // The first attempt does not wait; the next ones wait until a stalled reader has left.
    let mut patience = Duration::ZERO;
    loop {
        if let Ok(Ok(permit)) = tokio::time::timeout(patience, permit()).await {
            return Ok(permit);
        }
        if !shared.connections.end_stalled_reader() {
            let what = format!("{MAX_STREAMS} lists and event streams are being read already");
            return Err(Refused::busy(what, "end one of them or try again later"));
        }
        patience = TO_LEAVE;
    }
}

/// Writes a remark on events that were lost before the next.
fn lost_line(lines: &mut LineSender, lost: u64) -> Result<(), ReaderGone> {
    let remark = format_args!("# events lost: {lost}; read too slowly");
    if lost > 0 { text_line(lines, remark) } else { Ok(()) }
}

fn event_line(
    lines: &mut LineSender,
    form: LineFormat,
    numbered: &NumberedEvent<conntrack::Event>,
    names: &LabelNames,
) -> Result<(), ReaderGone> {
    let LineFormat::Conntrack(extras) = form else {
        return json_line(lines, &Event::new(numbered, names));
    };
    lost_line(lines, numbered.lost)?;
    text_line(lines, format::ReportedWith(&numbered.event, names, extras))
}

fn json_line(lines: &mut LineSender, value: &impl Serialize) -> Result<(), ReaderGone> {
    lines.line(|buffer| {
        // Neither a vector nor the types of this crate's schema can fail.
        let _ = serde_json::to_writer(buffer, value);
    })
}

fn text_line(lines: &mut LineSender, text: impl std::fmt::Display) -> Result<(), ReaderGone> {
    lines.line(|buffer| {
        // Writing to a vector does not fail.
        let _ = write!(buffer, "{text}");
    })
}

pub(crate) fn parsed<T>(query: QueryOf<T>) -> Result<T, Refused> {
    query.map(|Query(query)| query).map_err(|error| bad_filter(error.body_text()))
}

pub(crate) fn parsed_body<T>(body: BodyOf<T>) -> Result<T, Refused> {
    body.map(|Json(body)| body).map_err(|error| {
        Refused::bad_request("body", error.body_text(), "send JSON as the documentation says")
    })
}

fn no_such_request(place: &str) -> Refused {
    let todo = "the requests are listed in the documentation of the crate `control`";
    Refused::not_found(place, "there is no such request", todo)
}

/// The connections that a request chooses.
fn filter_of(shared: &Shared, query: &ConnectionQuery) -> Result<Filter, Refused> {
    query.filter(&shared.gateway.label_names()).map_err(bad_filter)
}

/// The changes that a request asks for.
fn changes_of(shared: &Shared, body: &UpdateConnections) -> Result<Changes, Refused> {
    let names = shared.gateway.label_names();
    let labels = |key, labels: &[String]| -> Result<Labels, Refused> {
        let read = labels.iter().map(|label| names.read(label));
        let refused =
            |error: UnknownLabel| Refused::bad_request(key, error, "name labels that there are");
        read.collect::<Result<_, _>>().map_err(refused)
    };
    let dropped = labels("drop_labels", &body.drop_labels)?;
    if body.mark.is_none() && body.mark_mask.is_some() {
        let what = "a mask without a mark changes nothing";
        return Err(Refused::bad_request("mark_mask", what, "give a mark too"));
    }
    Ok(Changes {
        mark: body.mark.map(|mark| (mark, body.mark_mask.unwrap_or(u32::MAX))),
        timeout_s: body.timeout_s,
        drop_labels: if body.drop_all_labels { Labels::ALL } else { dropped },
        add_labels: labels("add_labels", &body.add_labels)?,
    })
}

fn bad_filter(what: impl ToString) -> Refused {
    Refused::bad_request("query", what, "correct the filter")
}

/// The packet that a request asks about.
pub(crate) fn asked_packet(words: &str) -> Result<Probe, Refused> {
    let wrong =
        |error| Refused::bad_request("packet", error, "see `stateway rules explain --help`");
    Probe::parse(words).map_err(wrong)
}

pub(crate) fn unresponsive(error: impl std::fmt::Display) -> Refused {
    Refused::conflict("worker", error, "see the log of the gateway")
}

fn not_steered(error: SteerError) -> Refused {
    match error {
        SteerError::WorkerCount { .. }
        | SteerError::NoSuchWorker { .. }
        | SteerError::NoSuchBucket { .. } => {
            Refused::bad_request("steer", error, "give a number in the range")
        }
        other => Refused::conflict("steer", other, "see the log of the gateway"),
    }
}
