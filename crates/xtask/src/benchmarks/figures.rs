//! Figures of papers, drawn from the results of a benchmark.
//!
//! Model: a figure has lines, and a line has points. The horizontal axis shows certain numbers.

use std::fmt::Write;

/// The colours of a figure's lines, in order; they repeat.
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#2a9d5c", "#8e5aa8", "#b8860b", "#444444"];
/// The size of a picture.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// The margins, for the vertical axis, the names of the lines, the title and the horizontal axis.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;

/// A figure.
pub(super) struct Figure {
    /// The name of its file.
    pub(super) name: String,
    pub(super) title: String,
    /// The numbers at the horizontal axis, in order, and what they are.
    pub(super) ticks: Vec<u32>,
    pub(super) across: &'static str,
    /// The unit of the vertical axis.
    pub(super) unit: &'static str,
    pub(super) lines: Vec<Line>,
}

/// The points of a line.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(u32, f64)>,
}

impl Figure {
    /// The path from the directory of documents.
    pub(super) fn path(&self) -> String {
        format!("figures/{}.svg", self.name)
    }

    /// The figure as an SVG document.
    pub(super) fn svg(&self) -> String {
        let highest =
            self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(1e-6, f64::max);
        let step = step(highest);
        let top = (highest / step).ceil() * step;
        let (first, last) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let x = |at: u32| LEFT + f64::from(at - first) / f64::from(last - first) * (WIDTH - LEFT - RIGHT);
        let y = |rate: f64| HEIGHT - BOTTOM - rate / top * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
            self.title
        );
        let mut text = |x: f64, y: f64, anchor: &str, what: &str| {
            _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
        };
        for tick in &self.ticks {
            text(x(*tick), HEIGHT - BOTTOM + 16.0, "middle", &tick.to_string());
        }
        text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0, "middle", self.across);
        text(LEFT - 6.0, TOP - 6.0, "end", self.unit);
        for i in 0..=(top / step).round() as u32 {
            let value = f64::from(i) * step;
            text(LEFT - 6.0, y(value) + 4.0, "end", &((value * 1e6).round() / 1e6).to_string());
        }
        for (i, line) in self.lines.iter().enumerate() {
            text(WIDTH - RIGHT + 26.0, TOP + 18.0 * i as f64 + 4.0, "start", &line.name);
        }
        for i in 0..=(top / step).round() as u32 {
            let at = y(f64::from(i) * step);
            _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/>", WIDTH - RIGHT);
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dash = if i < COLOURS.len() { "none" } else { "5 3" };
            let points: Vec<String> =
                line.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                points.join(" ")
            );
            for (at, value) in &line.points {
                _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                    x(*at),
                    y(*value)
                );
            }
            let (from, at) = (WIDTH - RIGHT + 8.0, TOP + 18.0 * i as f64);
            _ = writeln!(
                svg,
                "<path d=\"M{from} {at}h14\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>"
            );
        }
        svg + "</svg>\n"
    }
}

/// A round step such that at most six of them reach `highest`.
fn step(highest: f64) -> f64 {
    let tens = 10f64.powf((highest / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|of| of * tens)
        .into_iter()
        .find(|step| highest / step <= 6.0)
        .unwrap_or(10.0 * tens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!([48.0, 11.8, 90.0, 0.7].map(step), [10.0, 2.0, 20.0, 0.2]);
    }
}
