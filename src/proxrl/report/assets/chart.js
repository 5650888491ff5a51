"use strict";
// One chart: lines with bands, axes, a legend that hides lines, values under the pointer, and zoom along the x axis.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 52, right: 14, top: 10, bottom: 30 };

function svgElement(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

let chartCount = 0;

class Chart {
  /** `onToggle(label)` is called when a line is clicked in the legend. */
  constructor(small, onToggle) {
    this.onToggle = onToggle;
    this.height = small ? 190 : 320;
    this.points = small ? 120 : 250; // of a mean over several seeds
    this.bandCache = new Map();
    this.zoom = null;
    this.hoverX = null;
    this.clip = `clip${chartCount++}`;
    this.root = element("article", { class: "card chart" });
    const head = element("div", { class: "chart-head" });
    this.heading = element("h3");
    this.buttons = element("div", { class: "zoom" });
    for (const [sign, text, action] of [
      ["+", "Zoom in", () => this.zoomBy(0.5)],
      ["−", "Zoom out", () => this.zoomBy(2)],
      ["Reset", "Show all", () => this.setZoom(null)],
    ]) {
      const button = element("button", { type: "button", "aria-label": text, title: text }, sign);
      button.addEventListener("click", action);
      this.buttons.append(button);
    }
    this.buttons.lastChild.className = "reset";
    head.append(this.heading, this.buttons);
    this.plot = element("div", { class: "plot" });
    this.svg = svgElement("svg", { tabindex: "0", role: "img" }, this.plot);
    this.tip = element("div", { class: "tip", hidden: "" });
    this.plot.append(this.tip);
    this.legend = element("div", { class: "legend" });
    this.root.append(head, this.plot, this.legend);
    listenTo(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  title(text, axis) {
    this.heading.replaceChildren(`${text} `, element("small", {}, axis));
  }

  /** Lines are {label, color, key, curves}: `curves` has one curve per seed, and `key` changes whenever they do. */
  show(lines, options) {
    this.lines = lines.filter((line) => line.curves.length);
    if (this.options && this.options.by !== options.by) this.zoom = null;
    this.options = options;
    this.draw();
  }

  get visible() {
    return this.lines.filter((line) => !this.options.hidden.has(line.label));
  }

  /** Returns the first and last position of all lines, including hidden ones, so that hiding a line does not move the axis. */
  extent() {
    const ends = this.lines.flatMap((line) => line.curves.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]]));
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.lines || width < 60) return;
    const all = this.extent();
    this.range = this.zoom || (all[1] > all[0] ? all : [all[0] - 0.5, all[0] + 0.5]);
    const previous = this.bandCache;
    this.bandCache = new Map();
    this.bands = this.visible.map((line) => this.bandFor(previous, line, line.curves, ""));
    const seedBands = !this.options.seeds ? [] : this.visible.flatMap((line) => line.curves.length < 2 ? [] :
      line.curves.map((curve, seed) => this.bandFor(previous, line, [curve], seed)));
    this.frame(width, [...this.bands, ...seedBands]);
    this.drawAxes(width);
    const area = svgElement("g", { "clip-path": `url(#${this.clip})` }, this.svg);
    const path = (kind, { line }, d) =>
      svgElement("path", { class: `${kind} ${line.color}`, "data-label": line.label, d }, area);
    for (const band of this.bands) if (band.line.curves.length > 1) path("band", band, this.bandPath(band));
    for (const band of seedBands) path("seed", band, this.linePath(band));
    for (const band of this.bands) path("line", band, this.linePath(band));
    this.marks = svgElement("g", {}, this.svg);
    this.selection = svgElement("rect", { class: "selection", y: MARGIN.top, height: this.inner.height, width: 0 }, this.svg);
    this.buttons.lastChild.hidden = !this.zoom;
    this.drawLegend();
    this.drawHover();
  }

  /** Returns the band of the previous drawing if nothing has changed, because bootstrapping is slow. */
  bandFor(previous, line, curves, seed) {
    const { smoothing, confidence } = this.options, key = JSON.stringify([line.key, seed, smoothing, this.range]);
    const band = previous.get(key) || bandOf(curves, smoothing, this.range, confidence, this.points);
    this.bandCache.set(key, band);
    return { line, ...band };
  }

  /** Sets the scales, and clears the picture to the size of the card. */
  frame(width, bands) {
    let low = Infinity, high = -Infinity;
    for (const band of bands) {
      band.x.forEach((x, i) => {
        if (x < this.range[0] || x > this.range[1]) return;
        low = Math.min(low, band.low[i]);
        high = Math.max(high, band.high[i]);
      });
    }
    if (low > high) [low, high] = [0, 1];
    const padding = high > low ? (high - low) * 0.05 : Math.abs(high) * 0.1 || 1;
    this.values = [low - padding, high + padding];
    this.inner = { width: width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom };
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("aria-label", `${this.heading.textContent}. Arrow keys read values, plus and minus zoom.`);
    const clip = svgElement("clipPath", { id: this.clip }, svgElement("defs", {}, this.svg));
    svgElement("rect", { x: MARGIN.left, y: 0, width: this.inner.width, height: this.height - MARGIN.bottom }, clip);
  }

  toPixelX(x) { return MARGIN.left + ((x - this.range[0]) / (this.range[1] - this.range[0])) * this.inner.width; }
  toPixelY(y) { return MARGIN.top + (1 - (y - this.values[0]) / (this.values[1] - this.values[0])) * this.inner.height; }
  toX(pixel) { return this.range[0] + ((pixel - MARGIN.left) / this.inner.width) * (this.range[1] - this.range[0]); }
  point(x, y) { return `${this.toPixelX(x).toFixed(2)},${this.toPixelY(y).toFixed(2)}`; }

  linePath(band) {
    // A path with a single point would be invisible, so it gets a minimal length.
    return band.x.map((x, i) => `${i ? "L" : "M"}${this.point(x, band.mean[i])}`).join("") + (band.x.length === 1 ? "h0.01" : "");
  }

  bandPath(band) {
    const above = band.x.map((x, i) => this.point(x, band.high[i]));
    const below = band.x.map((x, i) => this.point(x, band.low[i])).reverse();
    return above.length ? `M${above.concat(below).join("L")}Z` : "";
  }

  drawAxes(width) {
    const axes = svgElement("g", { class: "axes" }, this.svg), bottom = MARGIN.top + this.inner.height;
    for (const tick of ticksBetween(...this.values, this.inner.height / 42)) {
      const y = this.toPixelY(tick).toFixed(1);
      svgElement("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }, axes);
      svgElement("text", { x: MARGIN.left - 8, y, class: "y-tick" }, axes).textContent = formatShort(tick);
    }
    const [unit, name] = this.options.by === "step" ? [1, ""] : timeUnit(this.range[1]);
    for (const tick of ticksBetween(this.range[0] / unit, this.range[1] / unit, this.inner.width / 62)) {
      const text = svgElement("text", { x: this.toPixelX(tick * unit).toFixed(1), y: bottom + 19, class: "x-tick" }, axes);
      text.textContent = formatShort(tick) + name;
    }
  }

  drawLegend() {
    this.legend.replaceChildren(...this.lines.map((line) => {
      const shown = !this.options.hidden.has(line.label), seeds = line.curves.length;
      const button = element("button", { type: "button", class: `key ${line.color}`, "aria-pressed": String(shown) });
      button.append(element("i"), element("span", {}, line.label), element("small", {}, seeds > 1 ? `${seeds} seeds` : "1 seed"));
      button.addEventListener("click", () => this.onToggle(line.label));
      return button;
    }));
  }

  setZoom(range) {
    this.zoom = range;
    this.draw();
  }

  zoomBy(factor) {
    const all = this.extent(), middle = this.hoverX ?? (this.range[0] + this.range[1]) / 2;
    const low = middle - (middle - this.range[0]) * factor, high = middle + (this.range[1] - middle) * factor;
    const [from, to] = [Math.max(low, all[0]), Math.min(high, all[1])];
    this.setZoom(from <= all[0] && to >= all[1] ? null : [from, to]);
  }

  positions() {
    return this.bands.flatMap((band) => band.x).filter((x) => x >= this.range[0] && x <= this.range[1]);
  }

  hoverAt(x) {
    if (!this.bands) return;
    const nearer = (best, at) => (best === null || Math.abs(at - x) < Math.abs(best - x) ? at : best);
    this.hoverX = x === null ? null : this.positions().reduce(nearer, null);
    this.drawHover();
  }

  drawHover() {
    this.marks.replaceChildren();
    this.tip.hidden = this.hoverX === null || this.hoverX < this.range[0] || this.hoverX > this.range[1];
    if (this.tip.hidden) return;
    const x = this.toPixelX(this.hoverX), by = this.options.by;
    svgElement("line", { class: "crosshair", x1: x, x2: x, y1: MARGIN.top, y2: MARGIN.top + this.inner.height }, this.marks);
    const at = by === "step" ? `${Math.round(this.hoverX).toLocaleString("en")} steps` : formatTime(this.hoverX);
    this.tip.replaceChildren(element("b", {}, at));
    const heights = [];
    for (const band of this.bands) {
      if (!band.x.length || this.hoverX < band.x[0] || this.hoverX > band.x[band.x.length - 1]) continue;
      const above = Math.min(countUpTo(band.x, this.hoverX), band.x.length - 1), below = Math.max(above - 1, 0);
      const i = Math.abs(band.x[above] - this.hoverX) < Math.abs(band.x[below] - this.hoverX) ? above : below;
      const row = element("div", { class: `tip-row ${band.line.color}` });
      const interval = band.line.curves.length > 1 ? ` ${formatNumber(band.low[i])} – ${formatNumber(band.high[i])}` : "";
      const value = element("strong", {}, formatNumber(band.mean[i]));
      row.append(element("i"), element("span", {}, band.line.label), value, element("small", {}, interval));
      this.tip.append(row);
      const center = { cx: this.toPixelX(band.x[i]), cy: this.toPixelY(band.mean[i]), r: 4 };
      svgElement("circle", { class: `dot ${band.line.color}`, ...center }, this.marks);
      heights.push(center.cy);
    }
    const left = x + 14 + this.tip.offsetWidth < this.plot.clientWidth ? x + 14 : Math.max(0, x - 14 - this.tip.offsetWidth);
    // Place the tip in the half of the chart that has fewer lines.
    const bottom = MARGIN.top + this.inner.height - this.tip.offsetHeight - 6;
    const top = heights.length && meanOf(heights) < MARGIN.top + this.inner.height / 2 ? bottom : MARGIN.top + 4;
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}
