//! The table of workers. Several commands add columns of their own.

use control::schema::{Status, Worker};

use super::{Align, Table, percent};

/// A row for each worker: number, CPU, load, and the `cells` of a command under the titles `more`.
pub fn worker_table(
    status: &Status,
    more: &[&str],
    cells: impl Fn(&Worker) -> Vec<String>,
) -> Table {
    let titles = ["worker", "cpu", "busy"].iter().chain(more);
    let columns: Vec<_> = titles.map(|title| (*title, Align::Right)).collect();
    let mut table = Table::new(&columns);
    for worker in &status.workers {
        let mut row = vec![
            worker.worker.to_string(),
            worker.cpu.map_or("any".to_owned(), |cpu| cpu.to_string()),
            percent(worker.busy_ns, status.uptime_ns),
        ];
        row.extend(cells(worker));
        table.row(row);
    }
    table
}
