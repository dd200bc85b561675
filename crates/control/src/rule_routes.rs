//! Requests about rules.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use engine::{LoadRulesError, PrepareRulesError, Unresponsive};
use ruleset::{Options, listing};

use crate::SCHEMA;
use crate::gate::Gate;
use crate::query::LoadQuery;
use crate::refusal::Refused;
use crate::routes::{
    Answer, BodyOf, QueryOf, asked_packet, look, parsed, parsed_body, unresponsive,
};
use crate::rules::{KeptSets, RuleBook, TryError, change_elements, explain_now, live, with_kept};
use crate::schema::{
    ActiveRules, AskRules, ChangeElements, Done, Explanation, KeptElements, LoadedRules,
};
use crate::server::Shared;

/// The longest trial, in seconds: a day.
const MAX_TRIAL_S: u64 = 86_400;
/// Pause before the next attempt to restore a ruleset.
const ROLL_BACK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) fn router() -> Router<Shared> {
    Router::new()
        .route("/v1/rules", get(active).put(load))
        .route("/v1/rules/kept", put(kept))
        .route("/v1/rules/confirm", post(confirm))
        .route("/v1/rules/rollback", post(roll_back))
        .route("/v1/rules/reset", post(reset))
        .route("/v1/rules/explain", post(explain))
        .route("/v1/rules/elements", post(elements))
}

/// Runs work on a thread that may block, to its end even if the client has gone.
async fn on_thread<T: Send + 'static>(
    gate: Gate,
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let work = move || {
        let _open = gate.pass()?;
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(Refused::defect)?
}

async fn load(
    State(shared): State<Shared>,
    query: QueryOf<LoadQuery>,
    body: Body,
) -> Answer<LoadedRules> {
    let LoadQuery { confirm_s, allow_unsupported, keep_elements } = parsed(query)?;
    if confirm_s.is_some_and(|seconds| !(1..=MAX_TRIAL_S).contains(&seconds)) {
        let what = format!("a trial lasts 1 to {MAX_TRIAL_S} seconds");
        return Err(Refused::bad_request("confirm_s", what, "give a time in the range"));
    }
    let confirm = confirm_s.map(Duration::from_secs);
    let (document, turn) = shared.turns.read(body).await?;
    // The load runs in a task of its own. If the client goes away, the trial must still end.
    let task = tokio::spawn(async move {
        let trying = shared.clone();
        let options = Options { allow_unsupported };
        let (loaded, trial) = on_thread(shared.gate.clone(), move || {
            try_document(&trying, document, options, (confirm, keep_elements))
        })
        .await?;
        drop(turn);
        if let (Some(number), Some(confirm)) = (trial, confirm) {
            let roll_back = move || shared.rules.roll_back(&*shared.gateway, Some(number));
            tokio::spawn(end_trial(roll_back, confirm, ROLL_BACK_AGAIN));
        }
        Ok(Json(loaded))
    });
    task.await.map_err(Refused::defect)?
}

/// A ruleset with the elements that sets here have got since they were loaded, for a process that is
/// to take over with it. Nothing is loaded.
async fn kept(State(shared): State<Shared>, body: Body) -> Answer<KeptElements> {
    let (document, turn) = shared.turns.read(body).await?;
    let kept = look(move || {
        let book = read_book(document, Options { allow_unsupported: true })?;
        let (book, not_kept) = match shared.rules.active(Instant::now()) {
            (Some(running), _) => with_kept(book, &running, &shared.gateway, KeptSets::Fixed)?,
            _ => (book, Vec::new()),
        };
        Ok(KeptElements { schema: SCHEMA, ruleset: book.value(), not_kept })
    });
    let kept = kept.await;
    drop(turn);
    kept
}

fn read_book(document: Bytes, options: Options) -> Result<RuleBook, Refused> {
    // A secret for the hash tables of explanations, which hold values that senders choose.
    let seed = RandomState::new().hash_one(0_u8);
    let refused = |what: String| Refused::bad_request("rules", what, "correct the ruleset");
    RuleBook::read(document, options, seed).map_err(|error| refused(error.to_string()))
}

fn try_document(
    shared: &Shared,
    document: Bytes,
    options: Options,
    (confirm, keep_elements): (Option<Duration>, bool),
) -> Result<(LoadedRules, Option<u64>), Refused> {
    let refused = |what: String| Refused::bad_request("rules", what, "correct the ruleset");
    let book = read_book(document, options)?;
    let (book, not_kept) = match shared.rules.active(Instant::now()) {
        (Some(running), _) if keep_elements => {
            with_kept(book, &running, &shared.gateway, KeptSets::All)?
        }
        _ => (book, Vec::new()),
    };
    let missing_interfaces = book.missing_interfaces(&shared.gateway.interfaces());
    let (report, kernel) = (book.report(), book.look_at_kernel());
    let trial = shared.rules.load(&*shared.gateway, book, confirm, Instant::now());
    let trial = trial.map_err(|error| match error {
        TryError::Waits(_) => Refused::conflict(
            "rules",
            error,
            "`stateway rules confirm` keeps it, `stateway rules rollback` brings the one before \
             back",
        ),
        TryError::Load(LoadRulesError::Prepare(PrepareRulesError::Unsupported(problems))) => {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            refused(texts.join("; "))
        }
        TryError::Load(LoadRulesError::Prepare(PrepareRulesError::Compile(error))) => {
            refused(error.to_string())
        }
        TryError::Load(LoadRulesError::TooManyZones(error)) => refused(error.to_string()),
        TryError::Load(error @ LoadRulesError::Unresponsive(_)) => {
            Refused::conflict("rules", error, "the rules before stay in force: try again later")
        }
        TryError::Load(error) => Refused::conflict("rules", error, "see the log of the gateway"),
    })?;
    let (problems, summary) = (report.problems, report.summary);
    let confirm_s = confirm.map(|confirm| confirm.as_secs());
    let warnings = shared.gateway.rule_troubles().into_iter().chain(kernel.warnings()).collect();
    let schema = SCHEMA;
    let loaded = LoadedRules {
        schema,
        problems,
        summary,
        missing_interfaces,
        warnings,
        kernels_chains: kernel.chains,
        not_kept,
        confirm_s,
    };
    Ok((loaded, trial))
}

/// Restores the ruleset before, unless this one was confirmed meanwhile. On an error it tries
/// again, because an operator who is locked out can not.
async fn end_trial(roll_back: impl RollBack, confirm: Duration, pause: Duration) {
    tokio::time::sleep(confirm).await;
    loop {
        match tokio::task::spawn_blocking(roll_back.clone()).await {
            Ok(Ok(true)) => {
                tracing::warn!("the ruleset was not confirmed: the one before is back");
                return;
            }
            Ok(Ok(false)) => return,
            Ok(Err(error)) => tracing::error!(
                "the ruleset before can not be restored: {error}; the next attempt is in {} s",
                pause.as_secs()
            ),
            // The gateway stops.
            Err(_) => return,
        }
        tokio::time::sleep(pause).await;
    }
}

/// A function that ends a trial; false if the trial has ended already.
trait RollBack: Fn() -> Result<bool, LoadRulesError> + Clone + Send + 'static {}

impl<T: Fn() -> Result<bool, LoadRulesError> + Clone + Send + 'static> RollBack for T {}

async fn confirm(State(shared): State<Shared>) -> Answer<Done> {
    if shared.rules.confirm() {
        return Ok(Json(Done { schema: SCHEMA, affected: 1 }));
    }
    let what = "no ruleset is being tried: it was confirmed, or the one before is back already";
    Err(Refused::conflict("rules", what, "see `stateway rules list`"))
}

async fn roll_back(State(shared): State<Shared>) -> Answer<Done> {
    on_thread(shared.gate.clone(), move || match shared.rules.roll_back(&*shared.gateway, None) {
        Ok(true) => Ok(Json(Done { schema: SCHEMA, affected: 1 })),
        Ok(false) => {
            let what = "no ruleset is being tried, so there is none to go back from";
            Err(Refused::conflict("rules", what, "load another one"))
        }
        Err(error) => Err(Refused::conflict("rules", error, "see the log of the gateway")),
    })
    .await
}

async fn reset(State(shared): State<Shared>) -> Answer<Done> {
    on_thread(shared.gate.clone(), move || {
        match shared.gateway.reset_rules().map_err(unresponsive)? {
            Some(count) => Ok(Json(Done { schema: SCHEMA, affected: count as u64 })),
            None => Err(Refused::not_found("rules", "the gateway runs no ruleset", "load one")),
        }
    })
    .await
}

async fn elements(State(shared): State<Shared>, body: Body) -> Answer<Done> {
    // Elements may be as long as the ruleset that they come from.
    let (sent, turn) = shared.turns.read(body).await?;
    on_thread(shared.gate.clone(), move || {
        let wanted: ChangeElements = serde_json::from_slice(&sent).map_err(|error| {
            Refused::bad_request("body", error, "send JSON as the documentation says")
        })?;
        let _lasts_until_they_have_changed = turn;
        let changed = shared.rules.change(|book| change_elements(book, &shared.gateway, &wanted));
        match changed {
            Some(affected) => Ok(Json(Done { schema: SCHEMA, affected: affected? as u64 })),
            None => Err(Refused::not_found("rules", "the gateway runs no ruleset", "load one")),
        }
    })
    .await
}

async fn active(State(shared): State<Shared>) -> Answer<ActiveRules> {
    on_thread(shared.gate.clone(), move || {
        let ask = || shared.gateway.rules();
        let (view, (book, left)) =
            shared.rules.active_and(ask).map_err(|error: Unresponsive| unresponsive(error))?;
        let confirm_s = left.map(|left| left.as_secs());
        let Some(book) = book else {
            return Ok(Json(ActiveRules { schema: SCHEMA, confirm_s, ..ActiveRules::default() }));
        };
        let program = book.program();
        let live = view.as_ref().map(live).unwrap_or_default();
        let document = listing::with_live(book.document().value(), &program, &live);
        let document = listing::with_left_out(document, &book.left_out());
        Ok(Json(ActiveRules {
            schema: SCHEMA,
            confirm_s,
            revision: view.as_ref().map(|view| view.revision),
            age_s: view.as_ref().map(|view| view.age.as_secs()),
            summary: book.report().summary,
            kernels_chains: book.look_at_kernel().chains,
            ruleset: Some(document),
        }))
    })
    .await
}

async fn explain(State(shared): State<Shared>, body: BodyOf<AskRules>) -> Answer<Explanation> {
    let AskRules { packet } = parsed_body(body)?;
    let probe = asked_packet(&packet)?;
    on_thread(shared.gate.clone(), move || {
        let (book, _) = shared.rules.active(Instant::now());
        let none = || {
            let what = "the gateway runs no ruleset";
            Refused::not_found("rules", what, "load one, or ask one with --file")
        };
        let book: Arc<RuleBook> = book.ok_or_else(none)?;
        explain_now(&book, &shared.gateway, &probe).map(Json).map_err(unresponsive)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_end_of_a_trial_that_fails_is_tried_again() {
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = attempts.clone();
        let roll_back = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(LoadRulesError::HostGuard("it is deaf".to_owned())),
            _ => Ok(true),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(end_trial(roll_back, Duration::ZERO, Duration::from_millis(1)));
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
        let over = attempts.clone();
        let is_over = move || Ok(over.fetch_add(1, Ordering::Relaxed) == 0);
        runtime.block_on(end_trial(is_over, Duration::ZERO, Duration::from_millis(1)));
        assert_eq!(attempts.load(Ordering::Relaxed), 4, "it was confirmed");
    }
}
