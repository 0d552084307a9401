//! Chart of an autoscaler over the last hour: SVG with attributes only, and a table of the same values.

use askama::Template;
use jiff::Timestamp;

use super::parts::Part;
use crate::view::{AutoscalerHistory, SampleChart, SampleLine, SamplePoint};

/// Sizes of the drawing: width of the values, width of the lines, height of a title, height of the lines of one chart,
/// height of the times below all charts.
const VALUES: u64 = 90;
const LINES: u64 = 640;
const TITLE: u64 = 24;
const HEIGHT: u64 = 96;
const TIMES: u64 = 24;
/// Space for half of a line's width at both ends of the height.
const MARGIN: u64 = 2;
/// Maximum number of gaps named in the text.
const GAPS_MAX: usize = 5;

/// Renders the part with the chart, or with the reason that there is none.
pub(super) fn part(history: Option<&AutoscalerHistory>) -> Part {
    let template = match history {
        Some(history) => ChartTemplate { caption: caption(history), svg: draw(history), rows: rows(history) },
        None => ChartTemplate {
            caption: "This reconciler has no sample yet; it takes one every 15 s.".to_owned(),
            svg: String::new(),
            rows: Vec::new(),
        },
    };
    Part::new("chart", &template)
}

#[derive(Template)]
#[template(path = "chart.html")]
struct ChartTemplate {
    caption: String,
    svg: String,
    rows: Vec<Row>,
}

/// Values of one line, in words.
struct Row {
    name: String,
    now: String,
    lowest: String,
    highest: String,
}

fn rows(history: &AutoscalerHistory) -> Vec<Row> {
    let row = |chart: &SampleChart, line: &SampleLine| {
        let value =
            |value: Option<u64>| value.map_or_else(|| "–".to_owned(), |value| chart.unit.format(value));
        Row {
            name: line.name.clone(),
            now: value(line.newest),
            lowest: value(line.lowest()),
            highest: value(line.highest()),
        }
    };
    history
        .charts
        .iter()
        .flat_map(|chart| [&chart.actual, &chart.wanted].map(|line| row(chart, line)))
        .collect()
}

fn caption(history: &AutoscalerHistory) -> String {
    let time = |at: Timestamp| at.strftime("%H:%M:%S").to_string();
    let mut text =
        format!("From this reconciler's memory, {} to {} UTC.", time(history.first), time(history.to));
    let named = history.gaps.iter().take(GAPS_MAX);
    let named: Vec<String> =
        named.map(|(from, to)| format!("from {} to {}", time(*from), time(*to))).collect();
    if !named.is_empty() {
        text.push_str(&format!(" None {}", named.join(", ")));
        match history.gaps.len() - named.len() {
            0 => text.push('.'),
            more => text.push_str(&format!(", and {more} more gaps.")),
        }
    }
    text
}

/// Draws the charts one below the other, over the same time.
fn draw(history: &AutoscalerHistory) -> String {
    let panels = history.charts.iter().zip(0_u64..);
    let panels: String = panels.map(|(chart, row)| panel(history, chart, row * (TITLE + HEIGHT))).collect();
    let (width, bottom) = (VALUES + LINES, history.charts.len() as u64 * (TITLE + HEIGHT));
    let height = bottom + TIMES;
    let time = |at: Timestamp| at.strftime("%H:%M").to_string();
    let times = [(VALUES, "start", history.from), (width, "end", history.to)].map(|(x, anchor, at)| {
        format!(
            "<text class=\"quiet\" x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            bottom + 16,
            time(at)
        )
    });
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{}\">{panels}{}</svg>",
        label(history),
        times.concat()
    )
}

/// Describes the drawing for those who do not see it.
fn label(history: &AutoscalerHistory) -> String {
    let rows = rows(history).into_iter();
    let facts =
        rows.map(|Row { name, now, lowest, highest }| format!("{name} now {now}, {lowest} to {highest}"));
    format!("The last hour: {}", facts.collect::<Vec<_>>().join("; "))
}

/// Draws one chart, with its upper edge at `top`.
fn panel(history: &AutoscalerHistory, chart: &SampleChart, top: u64) -> String {
    let highest = chart.actual.highest().max(chart.wanted.highest()).unwrap_or_default().max(1);
    let scale = Scale { history, top: top + TITLE, highest };
    let (upper, lower) = (scale.y(highest), scale.y(0));
    let edge = VALUES - 8;
    let values = [(highest, upper), (0, lower)].map(|(value, y)| {
        let right = VALUES + LINES;
        format!(
            "<line class=\"axis\" x1=\"{VALUES}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>\
             <text class=\"quiet\" x=\"{edge}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            y + 4,
            chart.unit.format(value)
        )
    });
    format!(
        "<text x=\"{VALUES}\" y=\"{}\">{}; dashed: {}</text>{}{}{}",
        top + 16,
        chart.actual.name,
        chart.wanted.name,
        values.concat(),
        scale.line(&chart.wanted, "line quiet", " stroke-dasharray=\"4 3\""),
        scale.line(&chart.actual, "line", "")
    )
}

/// Position of values in the drawing.
struct Scale<'a> {
    history: &'a AutoscalerHistory,
    /// Upper edge of the lines.
    top: u64,
    /// Value at the upper edge.
    highest: u64,
}

impl Scale<'_> {
    fn x(&self, at: Timestamp) -> u64 {
        let seconds = |until: Timestamp| until.duration_since(self.history.from).as_secs();
        let (passed, all) =
            (seconds(at).max(0).unsigned_abs(), seconds(self.history.to).max(1).unsigned_abs());
        VALUES + passed.min(all) * LINES / all
    }

    fn y(&self, value: u64) -> u64 {
        let space = HEIGHT - 2 * MARGIN;
        let share = u128::from(value.min(self.highest)) * u128::from(space) / u128::from(self.highest.max(1));
        // Not more than `space`.
        self.top + MARGIN + space - u64::try_from(share).unwrap_or(space)
    }

    /// Draws each piece of a line by itself; a single value as a dot.
    fn line(&self, line: &SampleLine, class: &str, attributes: &str) -> String {
        let piece = |piece: &Vec<SamplePoint>| {
            let points = corners(piece);
            match points.as_slice() {
                [only] => {
                    format!(
                        "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"2\"/>",
                        self.x(only.at),
                        self.y(only.value)
                    )
                }
                all => {
                    let all = all.iter().map(|point| format!("{},{}", self.x(point.at), self.y(point.value)));
                    let all = all.collect::<Vec<_>>().join(" ");
                    format!("<polyline class=\"{class}\" stroke-width=\"2\"{attributes} points=\"{all}\"/>")
                }
            }
        };
        line.pieces.iter().map(piece).collect()
    }
}

/// Leaves out the points between two others of the same value: the line is the same without them.
fn corners(piece: &[SamplePoint]) -> Vec<SamplePoint> {
    let is_corner = |at: usize| {
        let value = |at: usize| piece.get(at).map(|point| point.value);
        let here = value(at);
        at == 0 || value(at - 1) != here || value(at + 1) != here
    };
    piece.iter().enumerate().filter(|(at, _)| is_corner(*at)).map(|(_, point)| *point).collect()
}

#[cfg(test)]
mod tests {
    use crate::view::Unit;
    use crate::view::testing::at;

    use super::*;

    fn line(name: &str, pieces: &[&[(i64, u64)]]) -> SampleLine {
        let point = |&(second, value): &(i64, u64)| SamplePoint { at: at(second), value };
        let pieces: Vec<Vec<SamplePoint>> =
            pieces.iter().map(|piece| piece.iter().map(point).collect()).collect();
        let newest = pieces.last().and_then(|piece| piece.last()).map(|point| point.value);
        SampleLine { name: name.to_owned(), pieces, newest }
    }

    /// An hour with a gap from 30 s to 1,800 s.
    fn history() -> AutoscalerHistory {
        let usage: [&[(i64, u64)]; 2] = [&[(0, 40), (15, 40), (30, 80)], &[(1800, 63), (3600, 63)]];
        AutoscalerHistory {
            from: at(0),
            to: at(3600),
            first: at(0),
            gaps: vec![(at(30), at(1800))],
            charts: vec![
                SampleChart {
                    name: "Pods".to_owned(),
                    unit: Unit::Pods,
                    actual: line("current pods", &[&[(0, 2)], &[(1800, 3), (1815, 3), (1830, 3), (3600, 3)]]),
                    wanted: line("wanted pods", &[]),
                },
                SampleChart {
                    name: "cpu utilization".to_owned(),
                    unit: Unit::Percent,
                    actual: line("cpu utilization", &usage),
                    wanted: line(
                        "target of cpu utilization",
                        &[&[(0, 50), (30, 50)], &[(1800, 50), (3600, 50)]],
                    ),
                },
            ],
        }
    }

    #[test]
    fn no_line_crosses_a_gap() {
        let svg = draw(&history());
        let lines: Vec<&str> =
            svg.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        // The pods stay the same, so only the ends of their line are left. The value at the top is 3, later 80%.
        let expected = [
            "410,26 730,26",
            // Target of the second chart: 50 of 80.
            "90,181 95,181",
            "410,181 730,181",
            "90,192 92,192 95,146",
            "410,166 730,166",
        ];
        assert_eq!(lines, expected, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 1, "a value alone is a dot: {svg}");
        assert!(!svg.contains("style"), "the page allows no inline style: {svg}");
    }

    #[test]
    fn the_table_and_the_label_say_what_is_drawn() {
        let history = history();
        let found =
            rows(&history).into_iter().map(|row| [row.name, row.now, row.lowest, row.highest].join("|"));
        let expected = [
            "current pods|3|2|3",
            "wanted pods|–|–|–",
            "cpu utilization|63%|40%|80%",
            "target of cpu utilization|50%|50%|50%",
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(
            draw(&history).contains("role=\"img\" aria-label=\"The last hour: current pods now 3, 2 to 3; ")
        );
        let text = "From this reconciler's memory, 00:00:00 to 01:00:00 UTC. \
                    None from 00:00:30 to 00:30:00.";
        assert_eq!(caption(&history), text);
        let gaps = vec![(at(0), at(100)); GAPS_MAX + 2];
        let many = caption(&AutoscalerHistory { gaps, ..history });
        assert!(many.ends_with(", and 2 more gaps."), "{many}");
    }

    #[test]
    fn values_of_any_size_stay_within_the_drawing() {
        let history = history();
        let scale = Scale { history: &history, top: 10, highest: u64::MAX };
        assert_eq!((scale.y(u64::MAX), scale.y(0)), (10 + MARGIN, 10 + HEIGHT - MARGIN));
        assert_eq!((scale.x(at(-5)), scale.x(at(9999))), (VALUES, VALUES + LINES));
    }
}
