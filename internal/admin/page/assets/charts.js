// The charts of the admin page.
'use strict';

const minutes = 15;
let span; // minutes that the charts show: as far as the history went when the page opened, until somebody chooses

class Chart {
  // floor is the lowest value of a logarithmic scale, undefined for a linear scale from 0.
  constructor(figure, series, format, floor) {
    this.series = series; this.format = format; this.floor = floor; this.points = [];
    this.out = figure.querySelector('output');
    this.svg = svg('svg', {viewBox: '0 0 900 150', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    for (const x of [300, 600]) this.svg.append(svg('line', {x1: x, x2: x, y1: 0, y2: 150, class: 'grid'}));
    this.svg.append(this.lines = svg('g', {class: 'grid'}));
    for (const s of series) this.svg.append(s.path = svg('path', {class: s.name}));
    this.cursor = svg('line', {y1: 0, y2: 150, class: 'cursor', visibility: 'hidden'});
    this.svg.append(this.cursor);
    this.marks = el('div', {'aria-hidden': 'true'});
    this.plot = el('div', {class: 'plot', tabindex: 0, role: 'img'}, this.svg, this.marks);
    this.times = [1, 2 / 3, 1 / 3, 0].map(() => el('span'));
    figure.append(this.plot, el('div', {class: 'axis', 'aria-hidden': 'true'}, this.times));
    this.plot.addEventListener('pointermove', e => this.point(e.offsetX / this.plot.clientWidth));
    this.plot.addEventListener('pointerleave', () => this.point(null));
    this.plot.addEventListener('blur', () => this.point(null));
    this.plot.addEventListener('keydown', e => {
      const step = {ArrowLeft: -1 / 180, ArrowRight: 1 / 180, PageUp: -1 / 15, PageDown: 1 / 15}[e.key];
      if (!step) return;
      e.preventDefault();
      this.point(Math.min(1, Math.max(0, (this.at ?? 1) + step)));
    });
  }
  point(at) { this.at = at; this.read(); }
  read() {
    const p = this.at === null || this.at === undefined ? undefined : this.nearest(this.end - (1 - this.at) * span * 60000);
    this.cursor.setAttribute('visibility', p ? 'visible' : 'hidden');
    if (!p) { put(this.out, ''); return; }
    const x = this.x(p.t);
    this.cursor.setAttribute('x1', x); this.cursor.setAttribute('x2', x);
    put(this.out, clock(p.t) + ': ' + this.series.map(s => s.label + ' ' + this.format(p[s.key])).join(', '));
  }
  nearest(t) {
    let best;
    for (const p of this.points) if (!best || Math.abs(p.t - t) < Math.abs(best.t - t)) best = p;
    return best && Math.abs(best.t - t) < 15000 ? best : undefined;
  }
  // scale returns the highest value of the scale, and marks the scale at round values. The scale grows at once, and shrinks rarely.
  scale(most) {
    const marks = most <= 0 ? [] : this.floor ? decades(this.floor, most) : steps(most), top = marks[marks.length - 1] ?? 1e-9;
    if (this.high && top <= this.high && most > this.high / (this.floor ? 100 : 3)) return this.high;
    if (this.high === top) return top;
    this.high = top;
    this.lines.replaceChildren(...marks.map(v => svg('line', {x1: 0, x2: 900, y1: this.y(v, top), y2: this.y(v, top), class: 'grid'})));
    this.marks.replaceChildren(...marks.map(v => this.mark(v, top)));
    return top;
  }
  mark(v, top) {
    const e = el('span', {}, this.format(v));
    e.style.top = this.y(v, top) / 1.5 + '%';
    return e;
  }
  y(v, max) {
    const high = !this.floor ? v / max : v <= this.floor ? 0 : Math.log(v / this.floor) / Math.log(max / this.floor);
    return (150 - 149 * high).toFixed(1);
  }
  x(t) { return Math.round(9000 * (1 - (this.end - t) / (span * 60000))) / 10; }
  draw(all) {
    const points = this.points = all.filter(p => p.t >= all[all.length - 1].t - span * 60000);
    this.times.forEach((t, i) => put(t, i === 3 ? 'now' : span * (3 - i) / 3 + ' min ago'));
    this.end = points.length ? points[points.length - 1].t : Date.now();
    const stacked = this.series[0].stacked;
    let max = 0;
    for (const p of points) max = Math.max(max, stacked ? this.series.reduce((sum, s) => sum + p[s.key], 0) : Math.max(...this.series.map(s => p[s.key])));
    max = this.scale(max);
    const low = points.map(() => 0);
    for (const s of this.series) {
      let line = '', area = '', back = [], last = 0;
      points.forEach((p, i) => {
        const from = stacked ? low[i] : 0, to = from + p[s.key];
        if (stacked) low[i] = to;
        const x = this.x(p.t), y = this.y(to, max);
        if (last && p.t - last > 20000) { area += close(back); back = []; line += 'M' + x + ' ' + y; area += 'M' + x + ' ' + y; }
        else { line += (line ? 'L' : 'M') + x + ' ' + y; area += (back.length ? 'L' : 'M') + x + ' ' + y; }
        back.push(x + ' ' + this.y(from, max));
        last = p.t;
      });
      s.path.setAttribute('d', stacked ? area + close(back) : line);
    }
    const p = points[points.length - 1];
    this.plot.setAttribute('aria-label', p ? 'now ' + this.series.map(s => s.label + ' ' + this.format(p[s.key])).join(', ') + '; at most ' + this.format(max) + ' in ' + span + ' minutes. Arrow keys read the past.' : 'no figures yet');
    this.read();
  }
}
const close = back => back.length ? back.reverse().map(p => 'L' + p).join('') + 'Z' : '';
// steps returns at most four round values, the last not below a number: multiples of 1, 2 or 5 times a power of 10.
function steps(n) {
  const power = 10 ** Math.floor(Math.log10(n / 3)), step = power * [1, 2, 5, 10].find(m => m * power * 3 >= n * 0.999);
  return Array.from({length: Math.ceil(n / step - 0.001)}, (_, i) => round(step * (i + 1)));
}
// decades returns the powers of 10 above a floor, up to the first one that is not below a number.
function decades(floor, n) {
  const all = [];
  for (let v = floor * 10; ; v *= 10) {
    all.push(round(v));
    if (v >= n * 0.999) return all;
  }
}
const round = n => Number(n.toPrecision(3)); // without the dust of binary fractions

const requestsChart = new Chart($('chart-requests'), [
  {name: 'denied', key: 'no', label: 'denied', stacked: true}, {name: 'passed', key: 'ok', label: 'passed', stacked: true}, {name: 'failed', key: 'bad', label: 'failed', stacked: true},
], rateOf);
const timeChart = new Chart($('chart-time'), [{name: 'p99', key: 'p99', label: 'p99'}, {name: 'p50', key: 'p50', label: 'p50'}], time, 1e-5);
