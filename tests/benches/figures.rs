//! Samples, their percentiles, and the table that shows them.

use std::fmt;
use std::time::Duration;

/// Samples of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<Duration>);

impl Series {
    pub(crate) fn add(&mut self, sample: Duration) {
        self.0.push(sample);
        self.0.sort();
    }

    /// The smallest sample that at least `percent` of all do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Formats milliseconds with one digit.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

/// Formats `ours` as a multiple of `bare`.
pub(crate) fn ratio(ours: Duration, bare: Duration) -> String {
    format!("{:.2} ×", ours.as_secs_f64() / bare.as_secs_f64().max(f64::MIN_POSITIVE))
}

/// A row of the table.
#[derive(Debug, Default)]
pub(crate) struct Row<'a> {
    /// Name of the measurement.
    pub(crate) what: &'a str,
    pub(crate) ours: String,
    /// Figure of the bare engine, if any.
    pub(crate) bare: String,
    /// Ratio of the first to the second.
    pub(crate) ratio: String,
    /// Limit set by the design.
    pub(crate) budget: &'a str,
}

/// The table of all figures.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<[String; 5]>);

impl Table {
    /// Adds a row and prints it immediately: the whole table comes late.
    pub(crate) fn add(&mut self, row: Row<'_>) {
        println!("measured: {}: {} {} {}", row.what, row.ours, row.bare, row.ratio);
        self.0.push([row.what.to_owned(), row.ours, row.bare, row.ratio, row.budget.to_owned()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["what", "Minik8s", "bare engine", "ratio", "budget"].map(str::to_owned);
        let rows: Vec<&[String; 5]> = [&head].into_iter().chain(&self.0).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        for (number, row) in rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                widths.iter().try_for_each(|width| write!(f, "|{}", "-".repeat(width + 2)))?;
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}
