//! Output formats: plain tables that fit the terminal, JSON, YAML, names.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Width};
use jiff::Timestamp;
use schema::violation::visible;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CliError;
use crate::args::Format;
use crate::view::List;

/// Spaces between two columns, as in kubectl.
const GAP: usize = 3;
/// Placeholder of an empty cell, so that columns can be counted in a pipe.
const EMPTY: &str = "-";
/// Minimum width of a cut column: fewer characters are useless.
const CUT_MIN: usize = 12;

#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Screen {
    /// Width of the terminal; `None` if lines may have any length.
    pub(in crate::cli) width: Option<u16>,
    pub(in crate::cli) color: bool,
}

impl Screen {
    /// Properties of stdout: color and a width only on a terminal, no color with `NO_COLOR`.
    pub(in crate::cli) fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = if terminal { comfy_table::Table::new().width() } else { None };
        Self { width, color: terminal && !no_colour }
    }

    /// Colors a status word, with control characters made visible.
    pub(in crate::cli) fn paint(self, word: &str) -> String {
        let word = &*visible(word);
        let code = match status_color(word) {
            Some(Color::Green) => "32",
            Some(Color::Yellow) => "33",
            Some(Color::Red) => "31",
            _ => return word.to_owned(),
        };
        if self.color { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() }
    }
}

/// A column: its header, and whether it may be cut to fit the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Column {
    pub(in crate::cli) header: &'static str,
    pub(in crate::cli) cuttable: bool,
}

pub(in crate::cli) const fn column(header: &'static str) -> Column {
    Column { header, cuttable: false }
}

pub(in crate::cli) const fn cuttable(header: &'static str) -> Column {
    Column { header, cuttable: true }
}

/// An object in full, of a kind with a page of its own.
pub(in crate::cli) trait Detail: Serialize + DeserializeOwned {
    /// The object in a list.
    type Row: TableItem + DeserializeOwned;
    /// First part of the path of the kind's objects in the API.
    const PLURAL: &str;

    fn row(&self) -> &Self::Row;

    /// The page of `describe`.
    ///
    /// # Errors
    /// Fails if a part can't be printed as YAML.
    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError>;
}

pub(crate) trait TableItem: Serialize {
    /// `kind/name`.
    fn id(&self) -> String;
    fn is_named(&self, name: &str) -> bool {
        self.id().split_once('/').is_some_and(|(_, own)| own == name)
    }
    /// Adds the item's columns to an empty row.
    fn row(&self, row: Row) -> Row;
}

/// A row of a table: the columns selected by the shape.
pub(crate) struct Row {
    pub(in crate::cli) shape: TableOptions,
    cells: Vec<(Column, String)>,
    /// Last column, shown if at least one row has a remark.
    remark: (Column, String),
}

impl Row {
    fn new(shape: TableOptions) -> Self {
        Self { shape, cells: Vec::new(), remark: (cuttable(""), String::new()) }
    }

    fn put(mut self, wanted: bool, column: Column, text: impl Display) -> Self {
        if wanted {
            self.cells.push((column, text.to_string()));
        }
        self
    }

    pub(in crate::cli) fn col(self, header: &'static str, text: impl Display) -> Self {
        self.put(true, column(header), text)
    }

    pub(in crate::cli) fn cut(self, header: &'static str, text: impl Display) -> Self {
        self.put(true, cuttable(header), text)
    }

    pub(in crate::cli) fn wide(self, header: &'static str, text: impl Display) -> Self {
        let wide = self.shape.wide;
        self.put(wide, column(header), text)
    }

    pub(in crate::cli) fn wide_cut(self, header: &'static str, text: impl Display) -> Self {
        let wide = self.shape.wide;
        self.put(wide, cuttable(header), text)
    }

    pub(in crate::cli) fn namespace(self, name: &str) -> Self {
        let wanted = self.shape.namespaces;
        self.put(wanted, column("NAMESPACE"), name)
    }

    pub(in crate::cli) fn remark(self, header: &'static str, text: impl Display) -> Self {
        Self { remark: (cuttable(header), text.to_string()), ..self }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableOptions {
    pub(in crate::cli) wide: bool,
    /// Set if the rows belong to several namespaces.
    pub(in crate::cli) namespaces: bool,
    /// Set if the rows are of several kinds.
    pub(in crate::cli) kinds: bool,
    /// Set if a command prints tables of several kinds: names include the kind, as in kubectl.
    pub(in crate::cli) ids: bool,
    pub(in crate::cli) bare: bool,
}

/// Formats a list as a table. Omits the header if `layout` continues a table.
pub(in crate::cli) fn table<T: TableItem>(
    items: &[&T],
    shape: TableOptions,
    screen: Screen,
    layout: &mut Layout,
) -> String {
    let mut rows: Vec<Row> = items.iter().map(|item| item.row(Row::new(shape))).collect();
    for (row, item) in rows.iter_mut().zip(items).filter(|_| shape.ids) {
        let name = row.cells.iter_mut().find(|(column, _)| column.header == "NAME");
        name.into_iter().for_each(|(_, text)| *text = item.id());
    }
    layout.remarks |= rows.iter().any(|row| !row.remark.1.is_empty());
    layout.bare = shape.bare;
    if layout.remarks {
        rows.iter_mut().for_each(|row| row.cells.push((row.remark.0, std::mem::take(&mut row.remark.1))));
    }
    let Some(first) = rows.first() else { return String::new() };
    let columns: Vec<Column> = first.cells.iter().map(|(column, _)| *column).collect();
    let texts = rows.into_iter().map(|row| row.cells.into_iter().map(|(_, text)| text).collect());
    format_rows(&columns, &texts.collect::<Vec<_>>(), screen, layout)
}

/// State that a continued table keeps.
#[derive(Debug, Default)]
pub(in crate::cli) struct Layout {
    /// Widths of the columns so far; empty before the header is printed.
    widths: Vec<usize>,
    remarks: bool,
    bare: bool,
}

/// Formats rows under upper-case headers, without borders.
pub(in crate::cli) fn format_rows(
    columns: &[Column],
    rows: &[Vec<String>],
    screen: Screen,
    layout: &mut Layout,
) -> String {
    let goes_on = !layout.widths.is_empty();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|text| cell_text(text)).collect()).collect();
    let widths = layout.widths_for(columns, &rows, screen);
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .force_no_tty();
    if screen.color {
        table.enforce_styling();
    }
    if !goes_on && !layout.bare {
        table.set_header(columns.iter().map(|column| Cell::new(column.header)).collect::<Vec<_>>());
    }
    for row in rows {
        let cells = row.into_iter().zip(&widths).map(|(text, width)| cell(text, *width));
        table.add_row(cells.collect::<Vec<_>>());
    }
    for (position, width) in widths.iter().enumerate() {
        if let Some(column) = table.column_mut(position) {
            column.set_padding((0, 0));
            let width = u16::try_from(width + GAP).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

impl Layout {
    /// Widths of the longest texts; on a terminal the longest cuttable columns shrink until a line fits.
    fn widths_for(&mut self, columns: &[Column], rows: &[Vec<String>], screen: Screen) -> Vec<usize> {
        let header = |column: &Column| if self.bare { 0 } else { column.header.chars().count() };
        let mut widths: Vec<usize> = columns.iter().map(header).collect();
        for row in rows {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        for (width, before) in widths.iter_mut().zip(&self.widths) {
            *width = (*width).max(*before);
        }
        if let Some(screen) = screen.width.map(usize::from) {
            let gaps = GAP * widths.len().saturating_sub(1);
            let mut surplus = (widths.iter().sum::<usize>() + gaps).saturating_sub(screen);
            while surplus > 0 {
                let longest = (0..widths.len())
                    .filter(|i| columns[*i].cuttable && widths[*i] > CUT_MIN)
                    .max_by_key(|i| widths[*i]);
                let Some(longest) = longest else { break };
                widths[longest] -= 1;
                surplus -= 1;
            }
        }
        self.widths.clone_from(&widths);
        widths
    }
}

/// The text of a cell in one line, with control characters made visible. Line breaks would break the table.
fn cell_text(text: &str) -> String {
    if text.is_empty() {
        EMPTY.to_owned()
    } else {
        visible(&text.replace(['\n', '\r', '\t'], " ")).into_owned()
    }
}

/// The text, cut to `width`.
fn cell(mut text: String, width: usize) -> Cell {
    if text.chars().count() > width {
        text = text.chars().take(width.saturating_sub(1)).chain(['…']).collect();
    }
    let colour = status_color(&text);
    let cell = Cell::new_owned(text);
    colour.into_iter().fold(cell, Cell::fg)
}

/// Color of a status word: green for good, yellow for in progress, red for bad.
fn status_color(word: &str) -> Option<Color> {
    // `Ready,SchedulingDisabled` has the color of its first word.
    Some(match word.split(',').next().unwrap_or_default() {
        "Running" | "Ready" | "Synced" | "Completed" | "Applied" | "Good" => Color::Green,
        "Pending" | "ContainerCreating" | "PodInitializing" | "Terminating" | "Degraded" | "NotReady"
        | "Warning" => Color::Yellow,
        "Failed" | "Error" | "Bad" | "NodeLost" | "OOMKilled" | "CrashLoopBackOff" | "ErrImagePull"
        | "ImagePullBackOff" | "Unknown" => Color::Red,
        _ => return None,
    })
}

/// Prints a list in the given format.
pub(in crate::cli) fn print_list<T: TableItem>(
    items: &[T],
    format: Format,
    shape: TableOptions,
) -> Result<(), CliError> {
    write_out(&list_text(items, format, shape)?)
}

/// Formats a list in the given format.
pub(in crate::cli) fn list_text<T: TableItem>(
    items: &[T],
    format: Format,
    shape: TableOptions,
) -> Result<String, CliError> {
    let all: Vec<&T> = items.iter().collect();
    match format {
        Format::Json => json(&List { items: all }),
        Format::Yaml => yaml(&List { items: all }),
        Format::Name => Ok(names(&all)),
        Format::Table | Format::Wide => Ok(table(&all, shape, Screen::stdout(), &mut Layout::default())),
    }
}

/// Prints a page repeatedly until the server stops answering: on a terminal in place of the previous one, otherwise only
/// when it changes.
pub(in crate::cli) async fn watch(
    format: Format,
    every: Duration,
    mut page: impl AsyncFnMut() -> Result<String, CliError>,
) -> Result<(), CliError> {
    if !matches!(format, Format::Table | Format::Wide) {
        return Err(CliError::Usage("-w prints tables only; leave out -o or write -o wide".to_owned()));
    }
    let is_terminal = io::stdout().is_terminal();
    let mut former = None;
    loop {
        let text = page().await?;
        if is_terminal {
            write_out(&in_place(&text))?;
        } else if former.as_ref() != Some(&text) {
            write_out(&text)?;
        }
        former = Some(text);
        tokio::time::sleep(every).await;
    }
}

/// Returns the text with the codes that put it in place of what is on the terminal, without clearing it first.
fn in_place(text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// `kind/name`, one per line.
pub(in crate::cli) fn names<T: TableItem>(items: &[&T]) -> String {
    items.iter().map(|item| format!("{}\n", visible(&item.id()))).collect()
}

pub(in crate::cli) fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| CliError::Write(e.into()))
}

pub(in crate::cli) fn yaml<T: Serialize>(value: &T) -> Result<String, CliError> {
    // Enums are written as maps: few parsers accept tags, which variants would become otherwise.
    let failed = |e| CliError::Write(io::Error::other(e));
    let mut text = Vec::new();
    serde_yaml::with::singleton_map_recursive::serialize(value, &mut serde_yaml::Serializer::new(&mut text))
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

pub(in crate::cli) fn write_out(text: &str) -> Result<(), CliError> {
    write_bytes(text.as_bytes())
}

pub(in crate::cli) fn write_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Write)
}

/// Prints lines for people, with control characters made visible.
pub(in crate::cli) fn write_lines(text: &str) -> Result<(), CliError> {
    write_out(&text.lines().map(|line| visible(line) + "\n").collect::<String>())
}

/// Prints lines for people to stderr, with control characters made visible.
pub(in crate::cli) fn note(text: &str) {
    let text: Vec<_> = text.lines().map(visible).collect();
    let _ = writeln!(io::stderr(), "{}", text.join("\n"));
}

/// Prints each line of the message as an error line to stderr.
pub(in crate::cli) fn print_errors(message: &str) {
    message.lines().for_each(print_error);
}

/// Prints the message as one error line to stderr.
pub(in crate::cli) fn print_error(message: &str) {
    let line = message.split('\n').map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    note(&format!("minik8s: {line}"));
}
