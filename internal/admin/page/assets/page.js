// The admin page: it asks the service of this address alone, and writes every text as text, never as markup.
'use strict';

const $ = id => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

// el makes an element. Properties beginning with "on" are listeners, and the others attributes; false and undefined leave one out.
function el(name, props, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false && value !== null) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.flat().filter(c => c !== undefined && c !== null && c !== false && c !== ''));
  return e;
}
function svg(name, attributes) {
  const e = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}
// put writes a text where it differs, so that nothing moves without need.
function put(e, text) { if (e.textContent !== text) e.textContent = text; }

// ---- numbers with units

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const some = new Intl.NumberFormat('en', {maximumFractionDigits: 1});
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1});
const count = n => n >= 1e6 ? short.format(n) : whole.format(n);
const rateOf = n => (n >= 1e6 ? short.format(n) : n >= 100 ? whole.format(n) : some.format(n)) + '/s';
// A number and its unit stay on one line.
const part = (n, of) => of <= 0 || n <= 0 ? '0\u00a0%' : n / of < 0.001 ? 'under 0.1\u00a0%' : (n / of >= 0.0995 ? whole : some).format(100 * n / of) + '\u00a0%';
function time(seconds) {
  const s = Math.abs(seconds);
  if (s === 0) return '0 s';
  if (s < 0.001) return whole.format(s * 1e6) + ' µs';
  if (s < 0.0995) return some.format(s * 1e3) + ' ms';
  if (s < 1) return whole.format(s * 1e3) + ' ms';
  if (s < 10) return some.format(s) + ' s';
  if (s < 90) return whole.format(s) + ' s';
  if (s < 5400) return whole.format(s / 60) + ' min';
  if (s < 129600) return whole.format(s / 3600) + ' h';
  return whole.format(s / 86400) + ' days';
}
const seconds = duration => duration ? parseFloat(duration) : 0; // "3.5s" of protobuf's JSON
const clock = date => new Date(date).toLocaleTimeString('en-GB');
const ago = date => time((Date.now() - new Date(date)) / 1000) + ' ago';
const entriesText = entries => (entries || []).map(e => e.key + '=' + (e.value || '')).join(',');
const place = (file, line) => file ? file + (line ? ':' + line : '') : '';
// near shortens a place to the name of the file, with the whole place as a title.
const near = (file, line) => file ? el('span', {title: place(file, line)}, place(file.slice(file.lastIndexOf('/') + 1), line)) : '';
function limitText(l) {
  if (!l) return '';
  const period = l.period ? ' per ' + unit(l) : ' at once';
  const burst = l.burst && l.burst !== l.requestsPerUnit ? ', burst ' + count(l.burst) : '';
  return count(l.requestsPerUnit || 0) + period + burst;
}
const unit = l => l.unit ? (l.unitMultiplier > 1 ? l.unitMultiplier + ' ' + l.unit + 's' : l.unit) : time(seconds(l.period));

// ---- asking the service

class Refused extends Error { constructor(code, text) { super(text); this.code = code; } }

async function call(method, request) {
  let answer;
  try {
    answer = await fetch('/api/' + method, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(request)});
  } catch { throw new Refused(0, 'The service does not answer.'); }
  if (answer.status === 401) { location.assign('/login'); }
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim());
  return answer.json();
}

let messageTimer;
function say(text, bad) {
  const m = $('message');
  m.className = bad ? 'message bad' : 'message';
  m.hidden = false;
  put(m, text);
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => { m.hidden = true; }, bad ? 12000 : 5000);
}
async function attempt(work) {
  try { return await work(); } catch (e) { say(e.message, true); return undefined; }
}
function confirmed(text, ok) {
  const d = $('ask-dialog');
  put($('ask-text'), text);
  put($('ask-ok'), ok);
  d.returnValue = '';
  d.showModal();
  return new Promise(done => d.addEventListener('close', () => done(d.returnValue === 'ok'), {once: true}));
}

// ---- charts

const minutes = 15;
let span = 2; // minutes that the charts show: 2, 5 or 15, as far as the history goes

class Chart {
  // floor is the lowest value of a logarithmic scale, undefined for a linear scale from 0.
  constructor(figure, series, format, floor) {
    this.series = series; this.format = format; this.floor = floor; this.points = [];
    this.out = figure.querySelector('output');
    this.svg = svg('svg', {viewBox: '0 0 900 150', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    for (const y of [0.5, 75, 149.5]) this.svg.append(svg('line', {x1: 0, x2: 900, y1: y, y2: y, class: 'grid'}));
    for (const x of [450]) this.svg.append(svg('line', {x1: x, x2: x, y1: 0, y2: 150, class: 'grid'}));
    for (const s of series) this.svg.append(s.path = svg('path', {class: s.name}));
    this.cursor = svg('line', {y1: 0, y2: 150, class: 'cursor', visibility: 'hidden'});
    this.svg.append(this.cursor);
    this.top = el('span', {class: 'top'}); this.mid = el('span', {class: 'mid'});
    this.plot = el('div', {class: 'plot', tabindex: 0, role: 'img'}, this.svg, this.top, this.mid);
    figure.append(this.plot, el('div', {class: 'axis', 'aria-hidden': 'true'}, this.from = el('span'), this.half = el('span'), el('span', {}, 'now')));
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
  y(v, max) {
    const high = !this.floor ? v / max : v <= this.floor ? 0 : Math.log(v / this.floor) / Math.log(max / this.floor);
    return (150 - 149 * high).toFixed(1);
  }
  x(t) { return Math.round(9000 * (1 - (this.end - t) / (span * 60000))) / 10; }
  draw(all) {
    const points = this.points = all.filter(p => p.t >= all[all.length - 1].t - span * 60000);
    put(this.from, span + ' min ago'); put(this.half, span === 5 ? '2½ min ago' : span === 2 ? '1 min ago' : '7½ min ago');
    this.end = points.length ? points[points.length - 1].t : Date.now();
    const stacked = this.series[0].stacked;
    let max = 0;
    for (const p of points) max = Math.max(max, stacked ? this.series.reduce((sum, s) => sum + p[s.key], 0) : Math.max(...this.series.map(s => p[s.key])));
    max = this.floor ? Math.max(nice(max), 10 * this.floor) : nice(max);
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
    put(this.top, max > 1e-9 ? this.format(max) : ''); put(this.mid, max > 1e-9 ? this.format(this.floor ? Math.sqrt(max * this.floor) : max / 2) : '');
    const p = points[points.length - 1];
    this.plot.setAttribute('aria-label', p ? 'now ' + this.series.map(s => s.label + ' ' + this.format(p[s.key])).join(', ') + '; at most ' + this.format(max) + ' in ' + span + ' minutes. Arrow keys read the past.' : 'no figures yet');
    this.read();
  }
}
const close = back => back.length ? back.reverse().map(p => 'L' + p).join('') + 'Z' : '';
// nice returns the first of 1, 2, 5, 10, … that is not less.
function nice(n) {
  if (n <= 0) return 1e-9;
  const power = 10 ** Math.floor(Math.log10(n));
  return power * [1, 2, 5, 10].find(m => m * power >= n * 0.999);
}

const requestsChart = new Chart($('chart-requests'), [
  {name: 'denied', key: 'no', label: 'denied', stacked: true}, {name: 'passed', key: 'ok', label: 'passed', stacked: true}, {name: 'failed', key: 'bad', label: 'failed', stacked: true},
], rateOf);
const timeChart = new Chart($('chart-time'), [{name: 'p99', key: 'p99', label: 'p99'}, {name: 'p50', key: 'p50', label: 'p50'}], time, 1e-5);

// ---- the state, once a second

let points = [], recent = [], state, mostDenied; // recent is the states of the last five seconds

function takeHistory(h) {
  points = h.points || [];
  for (const [id, values] of Object.entries(h.curves || {})) curves.set(Number(id), values);
  for (const row of rows.values()) row.curve();
  drawCharts();
}
// takeState shows a state. JSON of protobuf has numbers of 64 bits as texts.
function takeState(s) {
  const is = s.status, st = is.store, l = is.loads;
  s.total = Number(is.requests.passed) + Number(is.requests.denied) + Number(is.requests.failed);
  s.ready = is.notReady;
  s.store = {...st, without: Number(st.without), evicted: Number(st.evicted), max: st.maxPlaces, p99: s.storeP99};
  s.loads = {rules: is.rules, loadedAt: l.loadedAt, triedAt: l.attemptedAt, sources: l.sources, hash: l.hash, errors: l.errors, warnings: l.warnings, succeeded: l.loads, refused: l.refusals};
  state = s;
  recent = [...recent, s].filter(r => r.point.t > s.point.t - 5000);
  const last = points[points.length - 1];
  if (s.total && (!last || s.point.t > last.t)) points.push(s.point);
  const first = s.point.t - minutes * 60000;
  while (points.length && points[0].t < first) points.shift();
  drawCharts();
  showRules(s);
  showTiles(s);
  showVerdict(s);
  showLoads(s.loads, s);
}
function drawCharts() {
  const age = points.length ? (points[points.length - 1].t - points[0].t) / 60000 : 0;
  span = age <= 2 ? 2 : age <= 5 ? 5 : minutes;
  requestsChart.draw(points);
  timeChart.draw(points);
}

// lately is the mean of the last five seconds.
function lately() {
  const end = points.length ? points[points.length - 1].t : 0;
  const last = points.filter(p => p.t > end - 5000);
  const mean = key => last.length ? last.reduce((sum, p) => sum + p[key], 0) / last.length : 0;
  const missed = key => recent.reduce((sum, s) => sum + s[key], 0) / (recent.length || 1);
  return {ok: mean('ok'), no: mean('no'), bad: mean('bad'), p50: mean('p50'), p99: mean('p99'), noDomain: missed('noDomain'), unmatched: missed('unmatched')};
}

function tile(id, value, note, level) {
  const e = $(id);
  e.parentElement.className = level || '';
  if (e.dataset.is === value + '|' + note) return;
  e.dataset.is = value + '|' + note;
  e.replaceChildren(value, note ? el('small', {}, note) : '');
}
function showTiles(s) {
  const now = lately(), all = now.ok + now.no + now.bad;
  tile('tile-all', rateOf(all), count(s.total) + ' since the start');
  tile('tile-denied', part(now.no, all), rateOf(now.no), now.no > 0 ? 'warn' : '');
  tile('tile-failed', rateOf(now.bad), '', now.bad > 0 ? 'bad' : '');
  tile('tile-time', all > 0 ? time(now.p99) : '–', all > 0 ? 'p99; p50 ' + time(now.p50) : '', '');
  const st = s.store, remote = st.kind !== 'memory';
  put($('tile-store-name'), 'Store');
  if (remote) tile('tile-store', st.kind + (st.reason ? ' is away' : ''), st.reason ? 'for ' + time((Date.now() - new Date(st.since)) / 1000) : (st.p99 ? 'p99 ' + time(st.p99) : 'answers') + (st.fleet > 1 ? ', ' + st.fleet + ' processes' : ''), st.reason ? 'bad' : '');
  else tile('tile-store', 'Memory', count(st.places) + ' of ' + count(st.max) + ' places', st.max && st.places / st.max > 0.9 ? 'warn' : '');
}

let before, level;
function showVerdict(s) {
  const now = lately(), all = now.ok + now.no + now.bad, lines = [];
  const st = s.store, remote = st.kind !== 'memory';
  if (s.ready) lines.push(['bad', 'Not ready: ' + s.ready + '.']);
  if (remote && st.reason) lines.push(['bad', el('b', {}, st.kind + ' does not answer: '), st.reason + '. ' + count(st.without) + ' requests were decided without it since the start, ' + (st.fleet ? 'as one of ' + st.fleet + (st.fleet > 1 ? ' processes' : ' process') : 'and the number of processes is unknown') + (st.owed ? '; it will be told of ' + count(st.owed) + ' keys.' : '.')]);
  if (now.bad > 0) lines.push(['bad', el('b', {}, rateOf(now.bad) + ' fail'), ', ' + part(now.bad, all) + ' of the requests. ', link('#tail', 'See them', () => tailOnly('failed'))]);
  if ((s.loads.errors || []).length) lines.push(['bad', el('b', {}, 'The last load of rules was refused'), ' ' + ago(s.loads.triedAt) + '. The rules before it serve. ', link('#loaded', 'See why')]);
  if (now.no > 0) {
    const rule = ruleRows()[0], line = ['warn', el('b', {}, part(now.no, all) + ' of the requests are denied'), ': ' + rateOf(now.no) + ' of ' + rateOf(all) + '. '];
    if (rule && rule.mean.no > 0) line.push('Most by ', link('#rules', rule.about.domain + ': ' + rule.about.path, () => rule.open(true)), rule.about.file ? ' (' : '', near(rule.about.file, rule.about.line), rule.about.file ? ')' : '', ', ' + rateOf(rule.mean.no) + '. ');
    if (mostDenied) line.push('Most for ', link('#keys', entriesText(mostDenied.entries) || mostDenied.key), '.');
    lines.push(line);
  } else if (all > 0) lines.push(['good', el('b', {}, 'No request is denied'), ': ' + rateOf(all) + ' pass.']);
  else lines.push(['note', el('b', {}, 'No requests'), ' come now' + (s.total ? '; ' + count(s.total) + ' since the start.' : ', and none since the start.')]);
  if (now.noDomain > 0) lines.push(['warn', el('b', {}, rateOf(now.noDomain) + ' are for a domain without rules'), ', so nothing limits them. ', link('#tail', 'See them', () => tailOnly('no_domain'))]);
  if (now.unmatched > 0) lines.push(['warn', el('b', {}, rateOf(now.unmatched) + ' match no rule'), ', so nothing limits them. ', link('#tail', 'See why', () => tailOnly('unmatched'))]);
  if (!remote && before && st.evicted > before.evicted) lines.push(['warn', el('b', {}, 'Memory is full'), ': keys are forgotten before their time. Raise max-keys.']);
  if (remote && !st.reason) lines.push(['good', el('b', {}, st.kind + ' answers'), (st.p99 ? ', 99 % within ' + time(st.p99) : '') + (st.fleet > 1 ? '; ' + st.fleet + ' processes share it.' : '.')]);
  if (!remote) lines.push(['good', el('b', {}, 'Counts are in memory'), ': ' + count(st.keys) + ' keys.']);
  before = st;
  const list = $('verdict');
  list.setAttribute('aria-busy', 'false');
  const text = lines.map(l => l[0] + l.slice(1).map(c => c.textContent ?? c).join('')).join('\n');
  if (list.dataset.is !== text && !list.contains(document.activeElement)) {
    list.dataset.is = text;
    list.replaceChildren(...lines.map(([kind, ...rest]) => el('li', {class: kind}, ...rest)));
  }
  const worst = ['bad', 'warn', 'good', 'note'].find(k => lines.some(l => l[0] === k));
  if (worst !== level) { // said once, not each second
    level = worst;
    document.body.dataset.level = worst;
    put($('said'), {bad: 'Something is wrong: ', warn: 'Requests are limited: ', good: 'All is well. ', note: ''}[worst] + list.textContent);
  }
  document.title = (worst === 'bad' ? '✕ ' : now.no > 0 ? part(now.no, all) + ' denied · ' : '') + 'Weir' + ($host ? ' on ' + $host : '');
}
const $host = document.querySelector('.where b').textContent;
const link = (to, text, also) => el('a', {href: to, onclick: () => also && also()}, text);

// ---- rules

const rows = new Map(), curves = new Map();
let ordered = 0;

class RuleRow {
  constructor(r) {
    this.last = [];
    this.name = el('button', {type: 'button', class: 'open', 'aria-expanded': 'false', onclick: () => this.open(this.detail === undefined)});
    this.from = el('small', {});
    this.limit = el('td', {'data-label': 'Limit'});
    this.all = el('td', {class: 'n', 'data-label': 'Requests'});
    this.denied = el('td', {class: 'n', 'data-label': 'Denied'});
    this.passedPath = svg('path', {class: 'passed'}); this.deniedPath = svg('path', {class: 'denied'});
    const spark = svg('svg', {viewBox: '0 0 118 28', preserveAspectRatio: 'none', class: 'spark', role: 'img'});
    spark.append(this.deniedPath, this.passedPath);
    this.spark = spark;
    this.tr = el('tr', {}, el('th', {scope: 'row'}, this.name, this.from), this.limit, this.all, this.denied, el('td', {class: 'curve', 'data-label': '15 minutes'}, spark));
  }
  take(r) {
    this.about = r;
    this.last.push(r);
    if (this.last.length > 5) this.last.shift();
    const mean = key => this.last.reduce((sum, one) => sum + one[key], 0) / this.last.length;
    this.mean = {ok: mean('ok'), no: mean('no'), shadow: mean('shadow')};
    const all = this.mean.ok + this.mean.no + this.mean.shadow;
    if (this.name.dataset.is !== r.domain + '\n' + r.path) {
      this.name.dataset.is = r.domain + '\n' + r.path;
      this.name.replaceChildren(el('span', {class: 'domain'}, r.domain), ' ', el('b', {}, r.path));
    }
    const from = [place(r.file, r.line), ...(r.notes || [])].join(' · ');
    if (this.from.dataset.is !== from) {
      this.from.dataset.is = from;
      this.from.replaceChildren(near(r.file, r.line), (r.file ? ' · ' : '').repeat((r.notes || []).length && 1) + (r.notes || []).join(' · '));
    }
    put(this.limit, r.limits.join('; ') || (r.notes || []).join(', '));
    put(this.all, all > 0 ? rateOf(all) : r.total ? '0/s' : '–');
    const denied = this.mean.no + this.mean.shadow;
    put(this.denied, denied > 0 ? rateOf(denied) + ' · ' + part(denied, all) + (this.mean.no > 0 ? '' : ' in shadow') : r.total ? '0/s' : '–');
    this.tr.className = this.mean.no > 0 ? 'warn' : r.total ? '' : 'idle';
  }
  curve() {
    const values = (curves.get(this.about.id) || []).slice(-120);
    if (!values.length) return;
    let max = 0;
    for (let i = 0; i < values.length; i += 2) max = Math.max(max, values[i] + values[i + 1]);
    const x = i => 118 - 2 * (values.length / 2 - 1 - i), y = v => (28 - (max ? 27 * v / max : 0)).toFixed(1);
    const area = f => { // over the base line
      let d = 'M' + x(0) + ' 28';
      for (let i = 0; i < values.length / 2; i++) d += 'L' + x(i) + ' ' + y(f(i));
      return d + 'L118 28Z';
    };
    this.passedPath.setAttribute('d', max ? area(i => values[2 * i] + values[2 * i + 1]) : '');
    this.deniedPath.setAttribute('d', max ? area(i => values[2 * i + 1]) : '');
    this.spark.append(this.deniedPath); // before the other
    this.spark.setAttribute('aria-label', 'at most ' + rateOf(max) + ' in 15 minutes');
  }
  open(yes) {
    this.name.setAttribute('aria-expanded', String(yes));
    if (yes && !this.detail) {
      this.keys = new Keys({domain: this.about.domain, rule: this.about.path});
      this.detail = el('tr', {class: 'detail'}, el('td', {colspan: 5}, this.keys.root));
      this.tr.after(this.detail);
      this.keys.refresh();
    } else if (!yes && this.detail) {
      this.detail.remove();
      this.detail = this.keys = undefined;
    }
  }
}
const ruleRows = () => [...rows.values()].sort((a, b) => b.mean.no - a.mean.no || b.mean.ok - a.mean.ok || b.about.total - a.about.total || a.about.id - b.about.id);

function showRules(s) {
  const body = $('rules-rows'), seen = new Set(), domains = new Set();
  let fresh = false;
  for (const r of s.rules) {
    seen.add(r.id);
    domains.add(r.domain);
    let row = rows.get(r.id);
    if (!row) {
      rows.set(r.id, row = new RuleRow(r));
      body.append(row.tr);
      row.take(r);
      row.curve();
      fresh = true;
    } else row.take(r);
  }
  for (const [id, row] of rows) if (!seen.has(id) && !row.detail) { row.tr.remove(); rows.delete(id); }
  put($('rules-number'), s.number > s.rules.length ? s.rules.length + ' of ' + count(s.number) : count(s.number));
  // The order changes rarely, and not under somebody's hands.
  if (fresh || Date.now() - ordered > 5000 && !body.matches(':hover') && !body.contains(document.activeElement)) {
    ordered = Date.now();
    let at = body.firstElementChild;
    for (const row of ruleRows()) {
      if (at === row.tr) at = at.nextElementSibling; else body.insertBefore(row.tr, at);
      if (row.detail) { if (at === row.detail) at = at.nextElementSibling; else row.tr.after(row.detail); }
    }
  }
  const list = $('domains'), names = [...domains].sort().join('\n');
  if (list.dataset.is !== names) {
    list.dataset.is = names;
    list.replaceChildren(...[...domains].sort().map(d => el('option', {value: d})));
  }
}

// ---- keys

const orders = [['TOP_ORDER_DENIED', 'most denials'], ['TOP_ORDER_HITS', 'most hits'], ['TOP_ORDER_USED', 'most of the limit used']];
let panels = 0;
const hasKeys = 'keys' in document.body.dataset, hasGrants = 'grants' in document.body.dataset;

class Keys {
  constructor(only) {
    this.only = only;
    this.items = new Map();
    const id = 'keys-' + ++panels;
    this.order = el('select', {id: id + '-order', onchange: () => this.refresh()}, orders.map(([value, text]) => el('option', {value}, text)));
    this.window = el('select', {id: id + '-window', onchange: () => this.refresh()}, el('option', {value: '60s'}, '1 minute'), el('option', {value: '600s'}, '10 minutes'));
    this.note = el('span', {class: 'note'});
    this.body = el('tbody');
    this.table = el('table', {class: 'cards keys'}, el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'Key'), el('th', {scope: 'col', class: 'n'}, 'Hits'), el('th', {scope: 'col', class: 'n'}, 'Denied'), el('th', {scope: 'col'}, 'Used of the limit'), el('th', {scope: 'col'}, 'Idle in'), el('th', {scope: 'col'}, el('span', {class: 'unseen'}, 'Change')))), this.body);
    this.root = el('div', {class: 'panel'}, el('p', {class: 'line'}, el('label', {for: id + '-order'}, 'Keys with the '), this.order, el('label', {for: id + '-window'}, ' in the last '), this.window, ' ', this.note), this.table);
  }
  async refresh() {
    if (!hasKeys) put(this.note, 'This Weir does not count keys.');
    if (!hasKeys || this.busy) return;
    this.busy = true;
    try {
      const a = await call('ListTopKeys', {...this.only, order: this.order.value, window: this.window.value, most: this.only.most || 20});
      this.show(a);
    } catch (e) {
      put(this.note, e.message);
    } finally { this.busy = false; }
  }
  show(a) {
    const keys = (a.keys || []).filter(k => this.order.value !== 'TOP_ORDER_DENIED' || Number(k.denied || 0) > 0);
    if (!this.only.rule && this.order.value === 'TOP_ORDER_DENIED') mostDenied = keys.find(k => !inShadow(k));
    const covers = seconds(a.covers);
    put(this.note, !keys.length ? (this.order.value === 'TOP_ORDER_DENIED' ? 'No key has been denied.' : 'No key has had hits.') : covers && covers < parseFloat(this.window.value) - 2 ? 'of the last ' + time(covers) : '');
    this.table.hidden = !keys.length;
    const held = this.body.contains(document.activeElement) || this.body.matches(':hover'), seen = new Set();
    for (const k of keys) {
      const id = k.domain + '\n' + k.key;
      seen.add(id);
      let item = this.items.get(id);
      if (!item) this.items.set(id, item = new KeyRow(this, k));
      item.take(k);
      if (!held || !item.tr.isConnected) this.body.append(item.tr);
    }
    for (const [id, item] of this.items) if (!seen.has(id) && !item.tr.contains(document.activeElement)) { item.tr.remove(); this.items.delete(id); }
  }
}
// inShadow reports whether the rule of a key denies nothing, and counts only.
const inShadow = k => (state ? state.rules : []).some(r => r.domain === k.domain && r.path === k.rule && r.file === k.file && r.line === k.line && (r.notes || []).includes('shadow'));
class KeyRow {
  constructor(panel, k) {
    const what = entriesText(k.entries) || k.key;
    this.name = el('th', {scope: 'row'}, el('code', {title: k.key}, what), panel.only.rule ? '' : el('small', {}, k.domain + ': ' + k.rule));
    this.hits = el('td', {class: 'n', 'data-label': 'Hits'});
    this.denied = el('td', {class: 'n', 'data-label': 'Denied'});
    this.bar = el('i');
    this.usedText = el('span');
    this.used = el('td', {'data-label': 'Used', class: 'used'}, el('span', {class: 'bar', 'aria-hidden': 'true'}, this.bar), this.usedText);
    this.reset = el('td', {'data-label': 'Idle in'});
    const ask = (k.entries || []).length > 0;
    this.actions = el('td', {class: 'actions'}, ask && [
      el('button', {type: 'button', onclick: () => resetKey(this.key), 'aria-label': 'Reset ' + what}, 'Reset'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog(this.key, 'factor'), 'aria-label': 'Grant ' + what}, 'Grant'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog(this.key, 'block'), 'aria-label': 'Block ' + what}, 'Block')]);
    this.tr = el('tr', {}, this.name, this.hits, this.denied, this.used, this.reset, this.actions);
  }
  take(k) {
    this.key = k;
    const hits = Number(k.hits || 0), denied = Number(k.denied || 0), used = Math.min(1, Math.max(0, k.used || 0));
    const about = Number(k.hitsError || 0) > hits / 100 ? '≈' : '';
    put(this.hits, about + count(hits));
    const shadow = inShadow(k);
    put(this.denied, denied ? count(denied) + ' · ' + part(denied, hits) + (shadow ? ' in shadow' : '') : '0');
    this.tr.className = denied && !shadow ? 'warn' : '';
    this.bar.style.width = (100 * used).toFixed(1) + '%';
    this.bar.className = used >= 1 ? 'full' : used >= 0.8 ? 'near' : '';
    put(this.usedText, k.limit ? part(used, 1) + ' of ' + limitText(k.limit) + ', ' + count(k.remaining || 0) + ' left' : part(used, 1));
    put(this.reset, k.resetAfter ? time(seconds(k.resetAfter)) : 'now');
  }
}
async function resetKey(k) {
  const what = entriesText(k.entries);
  if (!await confirmed('Forget the count of ' + what + ' in ' + k.domain + '? It may use its whole limit again at once.', 'Reset')) return;
  await attempt(async () => {
    const a = await call('Reset', {domain: k.domain, descriptors: [{entries: k.entries, limit: k.override}]}); // an override has a count of its own
    say(a.forgotten ? 'The count of ' + what + ' is forgotten.' : 'The count of ' + what + ' was empty already.');
  });
}

const allKeys = new Keys({most: 10});
$('keys-all').append(allKeys.root);

// ---- grants

function grantDialog(k, gives) {
  const f = $('grant-form').elements;
  f.domain.value = k ? k.domain : '';
  f.entries.value = k ? entriesText(k.entries) : '';
  f.gives.value = gives;
  f.by.value = localStorage.getItem('by') || '';
  f.reason.value = '';
  $('grant-error').hidden = true;
  $('grant-form').dataset.entries = k ? JSON.stringify(k.entries) : '';
  put($('grant-title'), gives === 'block' ? 'Block one key' : 'Another limit for one key');
  $('grant-dialog').showModal();
  (k ? f.reason : f.domain).focus();
}
// parseEntries reads "key=value,key=value". Values with a comma need the button of a key.
function parseEntries(text) {
  return text.split(',').map(part => part.trim()).filter(Boolean).map(part => {
    const at = part.indexOf('=');
    return at < 0 ? {key: part, value: ''} : {key: part.slice(0, at), value: part.slice(at + 1)};
  });
}
$('grant-form').addEventListener('submit', async event => {
  event.preventDefault();
  const form = $('grant-form'), f = form.elements;
  const known = form.dataset.entries && JSON.parse(form.dataset.entries);
  const grant = {
    domain: f.domain.value.trim(), entries: known && entriesText(known) === f.entries.value ? known : parseEntries(f.entries.value),
    until: new Date(Date.now() + 1000 * Number(f.for.value)).toISOString(), reason: f.reason.value.trim(), by: f.by.value.trim(),
  };
  if (f.gives.value === 'factor') grant.factor = Number(f.factor.value);
  else if (f.gives.value === 'number') grant.requestsPerUnit = Number(f.number.value);
  else if (f.gives.value === 'unlimited') grant.unlimited = true;
  else grant.requestsPerUnit = 0;
  localStorage.setItem('by', grant.by);
  try {
    const a = await call('Grant', {grant});
    $('grant-dialog').close('ok');
    say('Granted until ' + new Date(a.grant.until).toLocaleString('en-GB') + ', kept ' + (a.kept || 'here') + '.');
    refreshGrants();
  } catch (e) {
    $('grant-error').hidden = false;
    put($('grant-error'), e.message);
  }
});
document.querySelectorAll('dialog .cancel').forEach(b => b.addEventListener('click', () => b.closest('dialog').close('cancel')));
$('grant-new').addEventListener('click', () => grantDialog(undefined, 'factor'));

const givesText = g => g.unlimited ? 'no limit' : g.factor !== undefined ? some.format(g.factor) + ' times its limit' : !g.requestsPerUnit ? 'blocked' : count(g.requestsPerUnit) + ' per period';

async function refreshGrants() {
  if (!hasGrants) return;
  let a;
  try { a = await call('ListGrants', {most: 100}); } catch (e) { put($('grants-kept'), e.message); return; }
  put($('grants-number'), a.number && a.number !== '0' ? count(Number(a.number)) : '');
  put($('grants-kept'), a.kept ? 'Kept ' + a.kept + '.' : '');
  const where = $('grants-rows'), is = JSON.stringify(a.grants || []);
  if (where.dataset.is === is || where.contains(document.activeElement)) { updateEnds(); return; }
  where.dataset.is = is;
  where.replaceChildren((a.grants || []).length ? el('table', {class: 'cards'}, el('thead', {}, el('tr', {}, ['Key', 'Gets', 'Ends in', 'Reason', ''].map(t => el('th', {scope: 'col'}, t || el('span', {class: 'unseen'}, 'Change'))))),
    el('tbody', {}, a.grants.map(g => el('tr', {class: givesText(g) === 'blocked' ? 'bad' : ''},
      el('th', {scope: 'row'}, el('code', {title: g.key || ''}, entriesText(g.entries)), el('small', {}, g.domain + (g.rule ? ': ' + g.rule : ''))),
      el('td', {'data-label': 'Gets'}, givesText(g) + (g.limit ? ' of ' + g.limit : '')),
      el('td', {'data-label': 'Ends in'}, el('time', {datetime: g.until, title: new Date(g.until).toLocaleString('en-GB')})),
      el('td', {'data-label': 'Reason'}, g.reason || '', g.by ? el('small', {}, 'by ' + g.by) : ''),
      el('td', {class: 'actions'}, el('button', {type: 'button', 'aria-label': 'Revoke the grant of ' + entriesText(g.entries), onclick: () => revoke(g)}, 'Revoke')))))) : el('p', {class: 'note'}, 'No key has a grant.'));
  updateEnds();
}
function updateEnds() {
  document.querySelectorAll('#grants-rows time').forEach(t => put(t, time(Math.max(0, (new Date(t.dateTime) - Date.now()) / 1000))));
}
async function revoke(g) {
  if (!await confirmed('End the grant of ' + entriesText(g.entries) + ' now?', 'Revoke')) return;
  await attempt(async () => {
    const a = await call('Revoke', {id: g.id, by: localStorage.getItem('by') || ''});
    say('The grant of ' + entriesText(g.entries) + ' has ended' + (a.notKept ? ', but a restart may bring it back, as ' + a.notKept : '') + '.');
    document.activeElement.blur();
    refreshGrants();
  });
}

// ---- the tail

const outcomes = {OK: ['passed', 'good'], OVER_LIMIT: ['denied', 'warn'], SHADOWED: ['denied in shadow', 'note'], UNLIMITED: ['unlimited', 'good'], REPLACED: ['replaced', 'note'], NOT_LIMITED: ['not limited', 'note'], UNMATCHED: ['no rule', 'warn'], NO_DOMAIN: ['no domain', 'warn'], FAILED: ['failed', 'bad']};
const tailRows = $('tail-rows');
let tail, tailPaused = false, tailSeen = false, tailMissed = 0, tailTimer;

function tailOpen() {
  tailClose();
  if (!tailSeen || tailPaused || document.hidden) return;
  const f = new FormData($('tail-form')), q = new URLSearchParams();
  for (const [key, value] of f) if (value) q.append(key, value);
  q.set('max', '20');
  const own = tail = new EventSource('/tail?' + q);
  put($('tail-state'), 'connecting');
  own.onopen = () => put($('tail-state'), 'Waiting for requests.');
  own.addEventListener('requests', e => takeRequests(JSON.parse(e.data)));
  own.onerror = async () => {
    if (own !== tail || own.readyState !== EventSource.CLOSED) return;
    const answer = await fetch('/tail?' + q, {method: 'GET', headers: {Accept: 'text/plain'}, signal: AbortSignal.timeout(1000)}).catch(() => undefined);
    if (own !== tail) { if (answer) answer.body.cancel(); return; }
    if (answer && !answer.ok) put($('tail-state'), (await answer.text()).trim());
    else { if (answer) answer.body.cancel(); put($('tail-state'), 'The connection is lost.'); }
    if (answer && answer.status === 501) { $('tail').hidden = true; return; }
    if (!answer || answer.status !== 400) tailTimer = setTimeout(tailOpen, 5000);
  };
}
function tailClose() {
  clearTimeout(tailTimer);
  if (tail) tail.close();
  tail = undefined;
}
function takeRequests(batch) {
  tailMissed += Number(batch.leftOut || 0) + Number(batch.lost || 0);
  const fresh = document.createDocumentFragment();
  for (const r of (batch.requests || []).reverse()) for (const d of r.descriptors && r.descriptors.length ? r.descriptors : [{}]) fresh.append(requestRow(r, d));
  tailRows.prepend(fresh);
  while (tailRows.children.length > 200) tailRows.lastElementChild.remove();
  put($('tail-state'), 'The newest first' + (tailMissed ? '; ' + count(tailMissed) + ' more are not shown: filter, or see sidecar watch.' : '.'));
}
function requestRow(r, d) {
  const name = (d.outcome || (r.error ? 'OUTCOME_FAILED' : '')).replace('OUTCOME_', '');
  const [text, kind] = outcomes[name] || ['', 'note'];
  const limit = (d.limits || []).find(l => !l.allowed) || (d.limits || [])[0], miss = d.nearestMiss;
  const what = [];
  if (r.error) what.push(r.error);
  else if (miss) what.push(miss.why || 'no rule matched', miss.beside && miss.beside.length ? el('small', {}, 'this level has ' + miss.beside.join(', ')) : '');
  else if (limit) what.push((never(limit, d.hits) ? 'never passes, by ' : limit.retryAfter && seconds(limit.retryAfter) ? 'passes in ' + time(seconds(limit.retryAfter)) + ', by ' : count(limit.remaining || 0) + ' left of ') + limitText(limit.limit), el('small', {}, [limit.source && sourceText(limit.source), 'in ' + time(seconds(r.took)), limit.grant && 'grant ' + limit.grant].filter(Boolean).join(', ')));
  return el('tr', {}, el('td', {}, el('time', {datetime: r.at}, clock(r.at))), el('td', {}, el('span', {class: 'tag ' + kind}, text)),
    el('th', {scope: 'row'}, el('code', {}, entriesText(d.entries) + times(d.hits)), el('small', {}, r.domain)),
    el('td', {}, d.rule || '–', d.file ? el('small', {}, near(d.file, d.line)) : ''), el('td', {}, what));
}
// times returns the hits beside a descriptor, nothing for one hit.
const times = hits => Number(hits ?? 1) === 1 ? '' : ' × ' + hits;
const never = (limit, hits) => !limit.allowed && Number(hits ?? 1) > (limit.limit.burst || 0);
const sourceText = source => source.startsWith('without') ? source : 'by ' + source;
function tailOnly(outcome) {
  $('tail-form').elements.outcome.value = outcome;
  tailSeen = true;
  tailPaused = false;
  showPaused();
  tailRows.replaceChildren();
  tailOpen();
}
function showPaused() {
  put($('tail-pause'), tailPaused ? 'Go on' : 'Pause');
  $('tail-pause').setAttribute('aria-pressed', String(tailPaused));
  if (tailPaused) put($('tail-state'), 'Paused.');
}
$('tail-form').addEventListener('submit', e => { e.preventDefault(); tailMissed = 0; tailRows.replaceChildren(); tailPaused = false; showPaused(); tailOpen(); });
$('tail-form').elements.outcome.addEventListener('change', () => $('tail-form').requestSubmit());
$('tail-pause').addEventListener('click', () => { tailPaused = !tailPaused; showPaused(); tailOpen(); });
// Watching costs the service a little, so it begins when somebody sees the tail.
new IntersectionObserver(all => { if (all.some(e => e.isIntersecting) && !tailSeen) { tailSeen = true; tailOpen(); } }).observe($('tail'));

// ---- explain

const reasons = {exact: 'matches exactly', wildcard: 'matches the wildcard', key_only: 'matches by its key', begin: 'begins a hold', end: 'ends a hold', no_match: 'matches nothing here', no_holder: 'needs one more entry'};

$('explain-form').addEventListener('submit', async e => {
  e.preventDefault();
  const f = e.target.elements, where = $('explain-answer');
  const descriptors = f.descriptors.value.split('\n').filter(l => l.trim()).map(l => ({entries: parseEntries(l), hits: Number(f.hits.value)}));
  try {
    const a = await call('Explain', {domain: f.domain.value.trim(), descriptors});
    if (!a.domain) { where.replaceChildren(el('p', {class: 'warn'}, 'The domain has no rules, so nothing is limited. There are: ' + (a.knownDomains || []).join(', ') + '.')); return; }
    where.replaceChildren(...(a.descriptors || []).map((d, i) => explanation(f.domain.value.trim(), descriptors[i], d)));
  } catch (error) { where.replaceChildren(el('p', {class: 'bad'}, error.message)); }
});
function explanation(domain, descriptor, d) {
  const r = d.rule;
  const denied = (d.limits || []).some(l => !l.allowed);
  return el('div', {class: 'panel'},
    el('p', {}, el('span', {class: 'tag ' + (denied ? 'warn' : d.matched || (d.limits || []).length ? 'good' : 'note')}, denied ? 'would be denied' : (d.limits || []).length ? 'would pass' : 'is not limited'), ' ', el('code', {}, entriesText(descriptor.entries) + times(descriptor.hits))),
    el('ol', {}, (d.steps || []).map(s => el('li', {}, el('code', {}, s.key + '=' + (s.value || '')), ' ' + (reasons[s.reason] || s.reason) + (s.pattern ? ' ' + s.pattern : ''), s.file ? el('small', {}, ' ', near(s.file, s.line)) : ''))),
    el('p', {}, r ? ['Rule ', el('b', {}, d.default ? 'default' : r.path), ' ', el('small', {}, near(r.file, r.line))] : 'No rule applies.'),
    (d.limits || []).map(l => el('dl', {class: 'facts'},
      el('dt', {}, 'Limit'), el('dd', {}, limitText(l.limit) + ', ' + l.limit.algorithm + (l.grant ? ' (by grant ' + l.grant.id + ': ' + l.grant.reason + ')' : '')),
      el('dt', {}, 'Now'), el('dd', {class: l.allowed ? '' : 'warn'}, (l.allowed ? 'allowed, ' + count(l.remaining || 0) + ' left after that' : 'denied, ' + (l.never ? 'always: the limit never has so many hits' : 'the same hits pass in ' + time(seconds(l.retryAfter)))) + '; idle after ' + time(seconds(l.resetAfter)) + (['memory', 'redis'].includes(l.source) ? '' : ', ' + sourceText(l.source))),
      el('dt', {}, 'Key'), el('dd', {}, el('code', {}, l.key)))),
    (d.limits || []).length ? el('p', {class: 'line'},
      el('button', {type: 'button', onclick: () => resetKey({domain, entries: descriptor.entries})}, 'Reset'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog({domain, entries: descriptor.entries}, 'factor')}, 'Grant'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog({domain, entries: descriptor.entries}, 'block')}, 'Block')) : '');
}

// ---- what is loaded

function showLoads(l, s) {
  const where = $('loaded-state'), is = JSON.stringify(l);
  put($('up'), time((Date.now() - new Date($('up').dateTime)) / 1000));
  if (where.dataset.is === is) { where.querySelectorAll('time').forEach(t => put(t, ago(t.dateTime))); return; }
  where.dataset.is = is;
  const when = date => date ? el('time', {datetime: date, title: new Date(date).toLocaleString('en-GB')}, ago(date)) : 'not yet';
  const list = (kind, title, all) => (all || []).length ? [el('h3', {}, title), el('ul', {class: 'mistakes ' + kind}, all.slice(0, 100).map(t => el('li', {}, t)), all.length > 100 ? el('li', {}, 'and ' + count(all.length - 100) + ' more') : '')] : '';
  where.replaceChildren(...[el('dl', {class: 'facts'},
    el('dt', {}, 'In force'), el('dd', {}, count(l.rules) + ' rules, since ', when(l.loadedAt)),
    el('dt', {}, 'From'), el('dd', {}, (l.sources || []).join(', ') || '–'),
    el('dt', {}, 'Hash'), el('dd', {}, el('code', {}, l.hash || '–')),
    el('dt', {}, 'Last load'), el('dd', {class: (l.errors || []).length ? 'bad' : ''}, (l.errors || []).length ? 'refused ' : 'succeeded ', when(l.triedAt), '; ' + count(l.succeeded) + ' succeeded and ' + count(l.refused) + ' were refused since the start')),
    list('bad', 'Mistakes of the last load, which is not in force', l.errors), list('warn', 'Likely mistakes in the rules in force', l.warnings)].flat().filter(Boolean));
}
$('reload').addEventListener('click', () => attempt(async () => {
  $('reload').disabled = true;
  try {
    const a = await call('Reload', {});
    put($('reload-answer'), a.loaded ? 'Loaded: ' + count(a.rules || 0) + ' rules.' : 'Refused: ' + count((a.errors || []).length) + ' mistakes. The rules before serve on.');
  } finally { $('reload').disabled = false; }
}));

// ---- the connection

let events, eventsTimer, hiddenTimer;

function connected(text, bad) {
  put($('live'), text);
  $('live').className = bad ? 'live bad' : 'live';
}
function open() {
  clearTimeout(eventsTimer);
  if (events) return;
  if (document.hidden) { leave(); return; }
  const own = events = new EventSource('/events');
  own.addEventListener('history', e => takeHistory(JSON.parse(e.data)));
  own.addEventListener('state', e => { connected('live'); takeState(JSON.parse(e.data)); });
  own.onerror = async () => {
    if (own !== events) return;
    connected('not connected', true);
    if (own.readyState !== EventSource.CLOSED) return; // the browser tries again
    events = undefined;
    try {
      const answer = await fetch('/events', {headers: {Accept: 'text/plain'}, signal: AbortSignal.timeout(2000)});
      if (answer.status === 401) { location.assign('/login'); return; }
      if (!answer.ok) connected((await answer.text()).trim(), true); else answer.body.cancel();
    } catch { /* not connected */ }
    eventsTimer = setTimeout(open, 3000);
  };
}
function leave() {
  if (events) events.close();
  events = undefined;
  clearTimeout(eventsTimer);
  tailClose();
  connected('paused while hidden');
}
document.addEventListener('visibilitychange', () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(leave, 5000); // nobody looks, so nothing is read
  else { open(); if (!tail) tailOpen(); }
});
setInterval(() => {
  if (document.hidden) return;
  if (hasKeys) { allKeys.refresh(); for (const row of rows.values()) if (row.keys) row.keys.refresh(); }
}, 2000);
setInterval(() => { if (!document.hidden && hasGrants) refreshGrants(); }, 5000);
if (hasKeys) allKeys.refresh();
refreshGrants();
open();
