//! Requests about connections as records, in the form of [`conntrack::Batch`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use conntrack::{Batch, end_of_export};
use engine::Record;
use flow::codec::prefixed;

use crate::SCHEMA;
use crate::refusal::Refused;
use crate::routes::{Answer, call, produce, unresponsive};
use crate::schema::ImportedRecords;
use crate::server::Shared;

pub(crate) fn router() -> Router<Shared> {
    Router::new().route("/v1/connections/records", get(export).post(import))
}

/// Sends all records, then an empty one, and their number.
async fn export(State(shared): State<Shared>) -> Result<Response, Refused> {
    let body = produce(shared, move |shared, mut bytes| {
        let mut count: u64 = 0;
        let result = shared.gateway.export_records(&mut |record| {
            count += 1;
            match bytes.add(|to| prefixed(to, |to| record.encode(to))) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        match result {
            // Without an end, the reader knows that something is missing.
            Err(error) => tracing::error!("an export of connections ends early: {error}"),
            Ok(()) => {
                let _ = bytes.add(|to| to.extend(end_of_export(count)));
            }
        }
        let _ = bytes.flush();
    })
    .await?;
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::new(body)).into_response())
}

async fn import(State(shared): State<Shared>, body: Bytes) -> Answer<ImportedRecords> {
    call(shared, move |gateway| {
        let (mut records, mut unreadable) = (Vec::new(), BTreeMap::<String, u64>::new());
        for bytes in Batch::new(&body) {
            let bytes = bytes.map_err(|error| {
                Refused::bad_request("body", error, "send records with their lengths")
            })?;
            match Record::decode(bytes) {
                Ok(record) => records.push(record),
                Err(error) => *unreadable.entry(error.to_string()).or_default() += 1,
            }
        }
        let report = gateway.import_records(records).map_err(unresponsive)?;
        let mut refused = BTreeMap::<String, u64>::new();
        for (why, count) in &report.refused {
            *refused.entry(why.name().to_owned()).or_default() += count;
        }
        Ok(ImportedRecords {
            schema: SCHEMA,
            imported: report.imported,
            announced: report.announced,
            elements: report.elements,
            refused,
            unreadable,
        })
    })
    .await
}
