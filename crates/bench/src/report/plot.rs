//! Plots of cost against size, as SVG for light and dark pages.
//!
//! Promise: both axes are logarithmic, so growth in proportion is a straight line; the dashed line
//! is the expected growth from the first point.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::figures::{Figure, grouped};
use super::{Growth, Row};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 164.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 48.0;
/// Colours that are distinct on white and on black, also for colour-blind readers.
const COLOURS: [&str; 8] =
    ["#2b8cc4", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f7f7f", "#8a63d2"];

/// Part of every plot, so that each file is self-contained.
const STYLE: &str = "<style>\
    svg{font:12px system-ui,sans-serif}\
    .ink{fill:#1a1a1a}.soft{fill:#666}.grid{stroke:#ddd}.paper{fill:#fff}\
    @media(prefers-color-scheme:dark){\
    .ink{fill:#eee}.soft{fill:#aaa}.grid{stroke:#3a3a3a}.paper{fill:#16181d}}</style>";

/// A size and the figure at that size.
type Point = (f64, f64);

/// One plot: a figure of several cases against their size.
#[derive(Debug)]
pub(crate) struct Plot {
    scenario: String,
    unit: &'static str,
    axis: &'static str,
    figure: Figure,
    growth: Growth,
    series: Vec<(String, Vec<Point>)>,
}

/// The plots of all cases that were measured at two sizes or more.
pub(crate) fn plots(rows: &[Row]) -> Vec<Plot> {
    let mut plots: BTreeMap<(String, &str, &str), Plot> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.case.size > 0) {
        let Some(figure) = shown(row) else { continue };
        let case = &row.case;
        let key = (case.scenario().to_owned(), case.unit, figure.name());
        let plot = plots.entry(key).or_insert_with(|| Plot {
            scenario: case.scenario().to_owned(),
            unit: case.unit,
            axis: case.axis,
            figure,
            growth: case.growth,
            series: Vec::new(),
        });
        if let Some(value) = row.figures.get(figure).filter(|value| *value > 0.0) {
            plot.add(series_name(row, rows), (case.size as f64, value));
        }
    }
    let mut plots: Vec<Plot> = plots.into_values().collect();
    plots.iter_mut().for_each(Plot::drop_single_points);
    plots.retain(|plot| !plot.series.is_empty());
    plots
}

/// The figure to plot for a case.
fn shown(row: &Row) -> Option<Figure> {
    match row.case.key.as_str() {
        "start/memory" | "idle/memory" | "list/at once" => Some(Figure::Memory),
        "start/restart" => Some(Figure::Wall),
        _ => row.figures.get(Figure::Cpu).map(|_| Figure::Cpu),
    }
}

fn series_name(row: &Row, rows: &[Row]) -> String {
    let has_several = rows.iter().any(|other| other.server != row.server);
    match has_several {
        true => format!("{} [{}]", row.case.mode(), row.server),
        false => row.case.mode().to_owned(),
    }
}

impl Plot {
    fn add(&mut self, name: String, point: Point) {
        match self.series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => self.series.push((name, vec![point])),
        }
    }

    fn drop_single_points(&mut self) {
        self.series.retain(|(_, points)| points.len() > 1);
        self.series.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    }

    fn title(&self) -> String {
        let singular = self.unit.trim_end_matches('s');
        match self.figure {
            Figure::Memory => format!("{}: memory", self.scenario),
            Figure::Wall => format!("{}: time", self.scenario),
            _ => format!("{}: CPU of the server for one {singular}", self.scenario),
        }
    }

    /// The file name without extension.
    pub(crate) fn slug(&self) -> String {
        format!("{}-{}-{}", self.scenario, self.unit, self.figure.name()).replace([' ', '_'], "-")
    }

    pub(crate) fn svg(&self) -> String {
        let ends = self.series.iter().filter_map(|(_, points)| self.reference(points));
        let drawn = self.series.iter().flat_map(|(_, points)| points.iter().copied());
        let frame = Frame::around(&drawn.chain(ends.map(|(_, end)| end)).collect::<Vec<_>>());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\">{STYLE}\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\
             <text class=\"ink\" x=\"{LEFT}\" y=\"20\" font-weight=\"600\">{title}</text>",
            title = escaped(&self.title())
        );
        self.draw_axes(&mut svg, &frame);
        for (index, (name, points)) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            if let Some((first, last)) = self.reference(points) {
                draw_reference(&mut svg, &frame, first, last, colour);
            }
            draw_line(&mut svg, &frame, points, colour);
            let y = TOP + 10.0 + index as f64 * 18.0;
            let x = WIDTH - RIGHT + 14.0;
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"3\" fill=\"{colour}\"/>\
                 <text class=\"ink\" x=\"{}\" y=\"{y}\">{}</text>",
                y - 5.0,
                x + 18.0,
                escaped(name)
            );
        }
        self.draw_note(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// The ends of the line of expected growth.
    fn reference(&self, points: &[Point]) -> Option<(Point, Point)> {
        let (first, last) = (points.first()?, points.last()?);
        let end = match self.growth {
            Growth::Flat => first.1,
            Growth::Straight => first.1 * last.0 / first.0,
        };
        Some((*first, (last.0, end)))
    }

    fn draw_axes(&self, svg: &mut String, frame: &Frame) {
        for x in frame.x_ticks() {
            let at = frame.x(x);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\"/>\
                 <text class=\"soft\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 16.0,
                grouped(x)
            );
        }
        for y in frame.y_ticks() {
            let at = frame.y(y);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                self.figure.text(y)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 12.0,
            escaped(self.axis)
        );
    }

    fn draw_note(&self, svg: &mut String) {
        let growth = match self.growth {
            Growth::Flat => "flat",
            Growth::Straight => "in proportion",
        };
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{}\" y=\"{}\" font-size=\"11\">dashed: {growth}</text>",
            WIDTH - RIGHT + 14.0,
            HEIGHT - BOTTOM
        );
    }
}

fn draw_line(svg: &mut String, frame: &Frame, points: &[Point], colour: &str) {
    let path: Vec<String> =
        points.iter().map(|(x, y)| format!("{:.1},{:.1}", frame.x(*x), frame.y(*y))).collect();
    let _ = write!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for (x, y) in points {
        let (x, y) = (frame.x(*x), frame.y(*y));
        let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
}

fn draw_reference(svg: &mut String, frame: &Frame, first: Point, last: Point, colour: &str) {
    let _ = write!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
         stroke-dasharray=\"4 4\" opacity=\"0.85\"/>",
        frame.x(first.0),
        frame.y(first.1),
        frame.x(last.0),
        frame.y(last.1)
    );
}

/// The ranges of values in a plot.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn around(points: &[Point]) -> Frame {
        let over = |pick: fn(&Point) -> f64| {
            let minimum = points.iter().map(pick).fold(f64::INFINITY, f64::min);
            (minimum, points.iter().map(pick).fold(0.0, f64::max))
        };
        let (low, high) = over(|point| point.1);
        // Margins above and below, and at least one decade, so that small differences look small.
        let high = (high * 1.6).max(low * 10.0 / 2.5);
        Frame { x: over(|point| point.0), y: (low / 2.5, high) }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - RIGHT - LEFT) * share(self.x, value)
    }

    fn y(&self, value: f64) -> f64 {
        (HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - TOP) * share(self.y, value)
    }

    fn x_ticks(&self) -> Vec<f64> {
        ticks(self.x, &[1.0])
    }

    fn y_ticks(&self) -> Vec<f64> {
        ticks(self.y, &[1.0, 2.0, 5.0])
    }
}

/// The position of a value between two others on a logarithmic scale, from 0 to 1.
fn share((low, high): (f64, f64), value: f64) -> f64 {
    match high > low {
        true => (value / low).ln() / (high / low).ln(),
        false => 0.5,
    }
}

/// Round numbers between two others.
fn ticks((low, high): (f64, f64), steps: &[f64]) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut decade = 10f64.powf(low.log10().floor());
    while decade <= high {
        let inside = steps.iter().map(|step| step * decade);
        ticks.extend(inside.filter(|tick| *tick >= low * 0.999 && *tick <= high * 1.001));
        decade *= 10.0;
    }
    ticks
}

/// Text escaped for HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Case;
    use crate::report::figures::Figures;

    fn row(mode: &str, size: usize, cpu: f64) -> Row {
        let case = Case::new("list", mode, "objects").sized("objects", size);
        let figures = Figures::default().with(Figure::Cpu, cpu);
        Row::alone(case, "headwater", 1, figures)
    }

    #[test]
    fn a_case_with_one_size_has_no_plot() {
        let rows = [row("full", 1000, 3.0), row("full", 100, 4.0), row("pages", 1000, 5.0)];
        let plots = plots(&rows);
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].series, [("full".to_owned(), vec![(100.0, 4.0), (1000.0, 3.0)])]);
        assert_eq!(plots[0].slug(), "list-objects-cpu-micros");
    }

    #[test]
    fn growth_in_proportion_is_a_straight_line() {
        let frame = Frame { x: (10.0, 1000.0), y: (1.0, 100.0) };
        let slope = |from: f64, to: f64| {
            (frame.y(to / 10.0) - frame.y(from / 10.0)) / (frame.x(to) - frame.x(from))
        };
        assert!((slope(10.0, 100.0) - slope(100.0, 1000.0)).abs() < 1e-9);
        assert!(frame.y(100.0) < frame.y(1.0), "more is higher");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks((3.0, 40.0), &[1.0, 2.0, 5.0]), [5.0, 10.0, 20.0]);
        assert_eq!(ticks((10.0, 10_000.0), &[1.0]), [10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn names_are_escaped() {
        let rows = [row("<a&b>", 10, 1.0), row("<a&b>", 100, 1.0)];
        let svg = plots(&rows)[0].svg();
        assert!(svg.contains("&lt;a&amp;b&gt;") && !svg.contains("<a&b>"), "{svg}");
    }
}
