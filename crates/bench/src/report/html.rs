//! The HTML report: all figures and plots of a run in one self-contained file.

use std::fmt::Write;

use super::figures::{Figure, Figures};
use super::goals::GoalVerdict;
use super::plot::{escaped, plots};
use super::{Report, Row};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1a1a1a;--soft:#666;--line:#ddd;--paper:#fff;--good:#0a7a3c;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--soft:#aaa;--line:#3a3a3a;--paper:#16181d;--good:#5fd38d;--bad:#ff8a80}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;padding:0 1rem;max-width:1240px}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}p{color:var(--soft);margin-top:0}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left;white-space:normal}th{color:var(--soft);font-weight:600}
.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}.soft{color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(430px,1fr));gap:1.2rem}
.plots svg{width:100%;height:auto;border:1px solid var(--line);border-radius:8px}
";

const COLUMNS: [(Figure, &str); 8] = [
    (Figure::Count, "count"),
    (Figure::Wall, "time"),
    (Figure::Rate, "per second"),
    (Figure::Cpu, "CPU each"),
    (Figure::P50, "p50"),
    (Figure::P99, "p99"),
    (Figure::Wire, "body"),
    (Figure::Memory, "memory"),
];

pub(crate) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>headwater bench</title><style>{STYLE}</style></head><body>\n\
         <h1>headwater bench</h1>\n<p>{}. Figures are medians of the runs; every stream was \
         checked for gaps, duplicates and order.</p>\n",
        escaped(&machine())
    );
    goals(&mut page, report);
    drawings(&mut page, report.rows());
    table(&mut page, "All figures", report.rows());
    table(&mut page, "Floor of this machine", report.floors());
    page.push_str("</body></html>\n");
    page
}

/// The machine of the run.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let version = env!("CARGO_PKG_VERSION");
    format!("headwater {version} on {cores} cores of {model}, client and server sharing them")
}

fn goals(page: &mut String, report: &Report) {
    let measured: Vec<_> =
        report.answers().filter_map(|(goal, row)| row.map(|row| (goal, row))).collect();
    if measured.is_empty() {
        return;
    }
    page.push_str("<h2>Targets</h2>\n<div class=\"wide\"><table>");
    let heads = ["line", "reference", "floor", "target", "measured", "floor here", ""];
    head(page, &heads);
    for (goal, row) in measured {
        let verdict = goal.verdict(row);
        let class = match verdict {
            GoalVerdict::Met | GoalVerdict::MetToScale => "met",
            GoalVerdict::Missed => "missed",
            GoalVerdict::NotMeasured => "soft",
        };
        page.push_str("<tr>");
        let (found, ratio) =
            (goal.measured(&row.figures), goal.floor_ratio(row).unwrap_or_default());
        for text in [goal.line, goal.reference, goal.floor, goal.target, &found, &ratio] {
            cell(page, "", text);
        }
        cell(page, class, verdict.word());
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n<p>");
    page.push_str(&escaped(&report.sum()));
    page.push_str(".</p>\n");
}

fn drawings(page: &mut String, rows: &[Row]) {
    let plots = plots(rows);
    if plots.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Growth</h2>\n<p>Both axes are logarithmic. The dashed line is the expected growth \
         from the first point.</p>\n<div class=\"plots\">\n",
    );
    for plot in plots {
        page.push_str(&plot.svg());
    }
    page.push_str("</div>\n");
}

fn table(page: &mut String, title: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = write!(page, "<h2>{}</h2>\n<div class=\"wide\"><table>", escaped(title));
    let mut heads = vec!["case", "server", "runs"];
    heads.extend(COLUMNS.iter().map(|(_, head)| *head));
    head(page, &heads);
    for row in rows {
        page.push_str("<tr>");
        cell(page, "", &row.case.name());
        cell(page, "soft", &row.server);
        cell(page, "soft", &row.runs.to_string());
        figures(page, &row.figures, Figure::text);
        page.push_str("</tr>\n");
        if let Some(floor) = &row.floor {
            page.push_str("<tr>");
            cell(page, "soft", "bare server, alternately");
            cell(page, "", "");
            cell(page, "", "");
            figures(page, floor, Figure::text);
            page.push_str("</tr>\n");
        }
        if let Some((other, ratios)) = &row.against {
            page.push_str("<tr>");
            cell(page, "soft", "divided by");
            cell(page, "soft", other);
            cell(page, "", "");
            figures(page, ratios, |_, value| format!("{value:.3}"));
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</table></div>\n");
}

fn head(page: &mut String, heads: &[&str]) {
    page.push_str("<tr>");
    for head in heads {
        let _ = write!(page, "<th>{}</th>", escaped(head));
    }
    page.push_str("</tr>\n");
}

fn figures(page: &mut String, figures: &Figures, show: impl Fn(Figure, f64) -> String) {
    for (figure, _) in COLUMNS {
        let text = figures.get(figure).map(|value| show(figure, value)).unwrap_or_default();
        cell(page, "", &text);
    }
}

fn cell(page: &mut String, class: &str, text: &str) {
    let _ = match class {
        "" => write!(page, "<td>{}</td>", escaped(text)),
        class => write!(page, "<td class=\"{class}\">{}</td>", escaped(text)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Case, Outputs, SILENT};

    #[test]
    fn a_page_has_goals_plots_and_figures_and_loads_nothing() {
        let mut report =
            Report::new(Outputs { json: true, ..Outputs::default() }, SILENT, "x".into());
        for (size, cpu) in [(1000, 3.0), (10_000, 9.0)] {
            let case = Case::new("list", "full", "objects").sized("objects", size);
            let figures = Figures::default().with(Figure::Cpu, cpu);
            report.row(Row::alone(case, "x", 1, figures));
        }
        let page = page(&report);
        for part in ["<svg", "LIST 10,000 pods", "class=\"missed\"", "list: full, 1,000 objects"] {
            assert!(page.contains(part), "{part}");
        }
        let links = ["src=", "href=", "url(", "@import"];
        assert!(links.iter().all(|link| !page.contains(link)));
    }
}
