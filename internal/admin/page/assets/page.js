// The admin page: the state once a second, rules, keys, requests and forms.
'use strict';

// ---- the state, once a second

let points = [], recent = [], state, mostDenied; // points are five seconds each; recent is the states of the last five seconds

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
  if (s.newest.t > (last ? last.t : 0)) points.push(s.newest);
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
  span ??= age <= 3 ? 3 : age <= 6 ? 6 : minutes;
  $('span').value = span;
  requestsChart.draw(points);
  timeChart.draw(points);
}

$('span').addEventListener('change', e => { span = Number(e.target.value); drawCharts(); });

// lately is the mean of the last five seconds.
function lately() {
  const mean = of => recent.reduce((sum, s) => sum + of(s), 0) / (recent.length || 1), rate = key => mean(s => s.point[key]);
  return {ok: rate('ok'), no: rate('no'), bad: rate('bad'), p50: rate('p50'), p99: rate('p99'), noDomain: mean(s => s.noDomain), unmatched: mean(s => s.unmatched)};
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
    const rule = denying(), line = ['warn', el('b', {}, part(now.no, all) + ' of the requests are denied'), ': ' + rateOf(now.no) + ' of ' + rateOf(all) + '. '];
    if (rule) line.push('Most by ', link('#rules', rule.about.domain + ': ' + rule.about.path, () => rule.open(true)), rule.about.file ? ' (' : '', near(rule.about.file, rule.about.line), rule.about.file ? ')' : '', ', ' + rateOf(rule.mean.no));
    if (rule && mostDenied && mostDenied.by === rule) line.push(', most of these for ', link('#rules', entriesText(mostDenied.key.entries) || mostDenied.key.key, () => rule.open(true)));
    if (rule) line.push('.');
    lines.push(line);
  } else if (all > 0) lines.push(['good', el('b', {}, 'No request is denied'), ': ' + rateOf(all) + ' pass.']);
  else if (s.total) lines.push(['note', el('b', {}, 'No requests'), ' come now; ' + count(s.total) + ' since the start.']);
  else lines.push(['note', el('b', {}, 'No requests'), ' have come since the start.' + (s.rules.length ? ' The next step is in Envoy: its rate limit filter must name the gRPC address of this Weir, and a domain of the rules (' + listed(domainsOf(s)) + ').' : '')]);
  if (!s.number) lines.push(['warn', el('b', {}, 'No rules are loaded'), ', so nothing is limited. The next step: put a rule file into ', soft(listed(s.loads.sources || []) || 'the directory of the rules'), ', and choose ', link('#loaded', 'Reload now'), '.']);
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
    put($('said'), {bad: 'Something is wrong: ', warn: now.no > 0 ? 'Requests are denied. ' : 'Some requests are not limited. ', good: 'All is well. ', note: ''}[worst] + list.textContent);
  }
  document.title = (worst === 'bad' ? '✕ ' : now.no > 0 ? part(now.no, all) + ' denied · ' : '') + 'Weir' + ($host ? ' on ' + $host : '');
}
const $host = document.querySelector('.where b').textContent;
const link = (to, text, also) => el('a', {href: to, onclick: () => also && also()}, soft(text));
const listed = all => all.slice(0, 5).join(', ') + (all.length > 5 ? ' and ' + (all.length - 5) + ' more' : '');
const domainsOf = s => [...new Set(s.rules.map(r => r.domain))].sort();
// denying returns the rule that denies most now, undefined without one.
const denying = () => [...rows.values()].filter(r => r.mean.no > 0).sort((a, b) => b.mean.no - a.mean.no)[0];

// askMostDenied finds the key with the most denials of the rule that denies most, so that a sentence can name both.
async function askMostDenied() {
  const by = denying();
  if (!by || asking) return;
  asking = true;
  const a = await call('ListTopKeys', {domain: by.about.domain, rule: by.about.path, order: 'TOP_ORDER_DENIED', window: '60s', most: 1}).catch(() => ({}));
  asking = false;
  const key = (a.keys || [])[0];
  mostDenied = key && Number(key.denied || 0) > 0 ? {by, key} : undefined;
}

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
      this.name.replaceChildren(el('span', {class: 'domain'}, soft(r.domain)), ' ', el('b', {}, soft(r.path)));
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
    this.idle = all === 0 && this.quiet();
    this.tr.className = this.mean.no > 0 ? 'warn' : this.idle ? 'idle' : '';
  }
  // quiet reports whether no request has met the rule for 15 minutes.
  quiet() {
    const values = curves.get(this.about.id) || [];
    return !this.about.total || values.length >= 120 && values.every(v => v === 0);
  }
  // fits reports whether each word is in the name, the place or the limits of the rule.
  fits(words) {
    const r = this.about, text = [r.domain, r.path, place(r.file, r.line), ...r.limits, ...(r.notes || [])].join(' ').toLowerCase();
    return words.every(w => text.includes(w));
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
      if (this.about.limits.some(l => l.includes(', warns at '))) this.usage = new Usage({domain: this.about.domain, rule: this.about.path});
      this.detail = el('tr', {class: 'detail'}, el('td', {colspan: 5}, this.keys.root, this.usage && this.usage.root));
      this.tr.after(this.detail);
      this.keys.refresh();
      if (this.usage) this.usage.refresh();
    } else if (!yes && this.detail) {
      this.detail.remove();
      this.detail = this.keys = this.usage = undefined;
    }
    fold(); // a rule that opens shows
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
  put($('rules-number'), count(s.number));
  // The order changes rarely, and not under somebody's hands.
  if (fresh || Date.now() - ordered > 5000 && !body.matches(':hover') && !body.contains(document.activeElement)) {
    ordered = Date.now();
    let at = body.firstElementChild;
    for (const row of ruleRows()) {
      if (at === row.tr) at = at.nextElementSibling; else body.insertBefore(row.tr, at);
      if (row.detail) { if (at === row.detail) at = at.nextElementSibling; else row.tr.after(row.detail); }
    }
    fold();
  }
  const list = $('domains'), is = [...domains].sort().join('\n');
  if (list.dataset.is !== is) {
    list.dataset.is = is;
    list.replaceChildren(...[...domains].sort().map(d => el('option', {value: d})));
  }
}
const few = 8; // rules that show at once
let unfolded = false;
// fold hides the rules without requests, and those behind the first ones, or all that do not fit the filter.
function fold() {
  const words = $('rules-filter').value.toLowerCase().split(/\s+/).filter(Boolean), more = $('rules-more'), all = ruleRows();
  const busy = all.filter(r => !r.idle), first = new Set(all.length <= few ? all : (busy.length ? busy : all).slice(0, few));
  const shows = words.length ? r => r.fits(words) : r => unfolded || first.has(r) || r.detail;
  for (const r of all) {
    r.tr.hidden = !shows(r);
    if (r.detail) r.detail.hidden = r.tr.hidden;
  }
  const hidden = all.filter(r => !first.has(r)), idle = hidden.filter(r => r.idle).length;
  more.hidden = words.length > 0 || !hidden.length;
  more.setAttribute('aria-expanded', String(unfolded));
  put(more, unfolded ? 'Show fewer rules' : 'Show ' + count(hidden.length) + ' more ' + (hidden.length === 1 ? 'rule' : 'rules') + (idle ? idle < hidden.length ? ', ' + count(idle) + ' of them without requests' : ' without requests in 15 minutes' : ''));
  const here = state && state.number > all.length ? ' The page has ' + count(all.length) + ' of ' + count(state.number) + ' rules, those with the most requests.' : '';
  put($('rules-help'), (words.length ? count(all.filter(shows).length) + ' of ' + count(all.length) + ' rules fit.' : all.length ? 'The rules with the most denials come first. Open a rule to see its keys.' : 'There are no rules.') + here);
}
$('rules-more').addEventListener('click', () => { unfolded = !unfolded; fold(); });
$('rules-filter').addEventListener('input', fold);

// ---- keys

const orders = [['TOP_ORDER_DENIED', 'most denials'], ['TOP_ORDER_HITS', 'most hits'], ['TOP_ORDER_USED', 'most of the limit used']];
let panels = 0, asking = false;
const has = part => !document.body.classList.contains('no-' + part), hasKeys = has('keys'), hasGrants = has('grants');

class Keys {
  constructor(only) {
    this.only = only;
    this.items = new Map();
    const id = 'keys-' + ++panels;
    this.order = el('select', {id: id + '-order', onchange: () => this.refresh()}, orders.map(([value, text]) => el('option', {value}, text)));
    this.window = el('select', {id: id + '-window', onchange: () => this.refresh()}, el('option', {value: '60s'}, '1 minute'), el('option', {value: '600s'}, '10 minutes'));
    this.note = el('span', {class: 'note'});
    this.body = el('tbody');
    this.table = el('table', {class: 'cards keys'}, el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'Key'), el('th', {scope: 'col', class: 'n'}, 'Hits'), el('th', {scope: 'col', class: 'n'}, 'Denied'), el('th', {scope: 'col'}, 'Used of the limit'), el('th', {scope: 'col'}, 'Reset after'), el('th', {scope: 'col'}, el('span', {class: 'unseen'}, 'Change')))), this.body);
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
    const covers = seconds(a.covers);
    put(this.note, !keys.length ? (this.order.value === 'TOP_ORDER_DENIED' ? 'No key has been denied. Choose “most hits” to see the other keys.' : 'No key has had hits. Keys come with the first requests that meet a rule.') : covers && covers < parseFloat(this.window.value) - 2 ? 'of the last ' + time(covers) : '');
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
    this.name = el('th', {scope: 'row'}, el('code', {title: k.key}, soft(what)), panel.only.rule ? '' : el('small', {}, soft(k.domain + ': ' + k.rule)));
    this.hits = el('td', {class: 'n', 'data-label': 'Hits'});
    this.denied = el('td', {class: 'n', 'data-label': 'Denied'});
    this.bar = el('i');
    this.usedText = el('span');
    this.used = el('td', {'data-label': 'Used', class: 'used'}, el('span', {class: 'bar', 'aria-hidden': 'true'}, this.bar), this.usedText);
    this.reset = el('td', {'data-label': 'Reset after'});
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
    put(this.usedText, k.limit ? part(used, 1) + ' of ' + limitText(k.limit) + ', ' + amount(k.limit, leftOf(k)) + ' left' : part(used, 1));
    put(this.reset, (k.resetAfter ? time(seconds(k.resetAfter)) : 'now') + blockedText(k));
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

// Usage is how much the keys of a rule with warn_at have used. Other rules have no such list.
class Usage {
  constructor(of) {
    this.of = of;
    const id = 'usage-' + ++panels;
    this.period = el('select', {id, onchange: () => this.refresh()}, el('option', {value: ''}, 'the window of now'), el('option', {value: 'last'}, 'the last window'));
    this.note = el('span', {class: 'note'});
    this.rows = el('div');
    this.root = el('div', {class: 'panel usage'}, el('p', {class: 'line'}, el('label', {for: id}, 'Used in '), this.period, ' ', this.note), this.rows);
  }
  async refresh() {
    let a;
    try { a = await call('ListUsage', {...this.of, last: !!this.period.value, most: 20}); } catch (e) { put(this.note, e.message); return; }
    const keys = a.keys || [];
    put(this.note, (keys.length ? '' : 'No key has used any. ') + 'Of the keys that this Weir has charged since ' + new Date(a.since).toLocaleString('en-GB') + (a.leftOut && a.leftOut !== '0' ? '; some may be missing.' : '.'));
    const at = this.rows.contains(document.activeElement) && document.activeElement.getAttribute('aria-label');
    this.rows.replaceChildren(keys.length ? el('table', {class: 'cards'}, el('thead', {}, el('tr', {}, ['Key', 'Used', 'Until', ''].map(t => el('th', {scope: 'col'}, t || el('span', {class: 'unseen'}, 'Change'))))),
      el('tbody', {}, keys.map(k => this.row(k)))) : '');
    if (at) [...this.rows.querySelectorAll('button')].find(b => b.getAttribute('aria-label') === at)?.focus();
  }
  row(k) {
    const used = Number(k.used || 0), of = Number(k.of || 0), what = entriesText(k.entries);
    return el('tr', {class: of && used >= of ? 'warn' : ''},
      el('th', {scope: 'row'}, el('code', {title: k.key}, soft(what || k.key))),
      el('td', {'data-label': 'Used'}, amount(k.limit, used) + (k.current ? '' : '?') + ' of ' + amount(k.limit, of) + ', ' + part(used, of)),
      el('td', {'data-label': 'Until'}, k.until ? new Date(k.until).toLocaleString('en-GB') : ''),
      el('td', {class: 'actions'}, what && k.until && el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog({domain: this.of.domain, entries: k.entries}, 'add'), 'aria-label': 'Top up ' + what}, 'Top up')));
  }
}

const allKeys = new Keys({most: 10});
$('keys-all').append(allKeys.root);

// ---- the tail

const outcomes = {OK: ['passed', 'good'], OVER_LIMIT: ['denied', 'warn'], SHADOWED: ['denied in shadow', 'note'], UNLIMITED: ['unlimited', 'good'], REPLACED: ['replaced', 'note'], NOT_LIMITED: ['not limited', 'note'], UNMATCHED: ['no rule', 'warn'], NO_DOMAIN: ['no domain', 'warn'], FAILED: ['failed', 'bad'], REPORTED: ['reported', 'note'], ASSIGNED: ['assigned', 'note']};
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
  own.onopen = () => put($('tail-state'), 'Waiting for requests' + ([...f.values()].some(Boolean) ? ' that fit the filter.' : '. They show here as Envoy asks about them.'));
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
  for (const r of (batch.requests || []).reverse()) {
    const all = decidingFirst(r.descriptors && r.descriptors.length ? r.descriptors : [{}]);
    fresh.append(...all.slice(0, 20).map((d, i) => requestRow(r, d, i > 0)));
    if (all.length > 20) fresh.append(el('tr', {class: 'more'}, el('td', {colspan: 5}, 'and ' + count(all.length - 20) + ' more descriptors of this request')));
  }
  tailRows.prepend(fresh);
  while (tailRows.children.length > 200) { // whole requests
    let last;
    do { last = tailRows.lastElementChild; last.remove(); } while (last.className === 'more');
  }
  put($('tail-state'), 'The newest first' + (tailMissed ? '; ' + count(tailMissed) + ' more are not shown: filter, or see sidecar watch.' : '.'));
}
// decidingFirst puts the descriptor first whose limit the answer reports: the one that denies for the longest time or for ever, else
// the one with the least left.
function decidingFirst(all) {
  let first;
  const worse = (a, ever, b) => !b || (a.allowed || false) !== (b.limit.allowed || false) ? !b || !a.allowed : a.allowed ? leftOf(a) < leftOf(b.limit) : ever !== never(b.limit, b.d.hits) ? ever : seconds(a.retryAfter) > seconds(b.limit.retryAfter);
  for (const d of all) if (['OUTCOME_OVER_LIMIT', 'OUTCOME_OK'].includes(d.outcome)) for (const limit of d.limits || []) if (worse(limit, never(limit, d.hits), first)) first = {d, limit};
  return first ? [first.d, ...all.filter(d => d !== first.d)] : all;
}
function requestRow(r, d, more) {
  const name = (d.outcome || (r.error ? 'OUTCOME_FAILED' : '')).replace('OUTCOME_', '');
  const [text, kind] = outcomes[name] || ['', 'note'];
  const limit = (d.limits || []).find(l => !l.allowed) || (d.limits || [])[0], miss = d.nearestMiss;
  const what = [];
  if (r.error) what.push(soft(r.error));
  else if (limit) what.push((limit.blockedUntil ? blockedText(limit).slice(2) + ', by ' : never(limit, d.hits) ? 'never passes, by ' : limit.retryAfter && seconds(limit.retryAfter) ? 'passes in ' + time(seconds(limit.retryAfter)) + ', by ' : amount(limit.limit, leftOf(limit)) + ' left of ') + limitText(limit.limit));
  else if (miss) what.push(soft(miss.why || 'no rule matched'));
  const notes = [!r.error && limit && limit.source && !usual(limit.source) && sourceText(limit.source), d.group && 'group ' + d.group, !more && 'in ' + time(seconds(r.took)), limit && limit.grant && 'grant ' + limit.grant].filter(Boolean).join(', ');
  what.push(notes && el('small', {}, notes), limit && miss && el('small', {}, 'no rule of its own: ', soft(miss.why)));
  return el('tr', {class: more && 'more'}, el('td', {}, !more && el('time', {datetime: r.at}, clock(r.at))), el('td', {}, el('span', {class: 'tag ' + kind}, text)),
    el('th', {scope: 'row'}, el('code', {}, soft(entriesText(d.entries) + times(d.hits))), !more && el('small', {}, soft(r.domain || ''))),
    el('td', {}, soft(d.rule || '–'), d.file ? el('small', {}, near(d.file, d.line)) : ''), el('td', {}, what));
}
// times returns the hits beside a descriptor, nothing for one hit.
const times = hits => Number(hits ?? 1) === 1 ? '' : ' × ' + hits;
// An estimate above its limit is cut to the limit.
const never = (limit, hits) => !limit.allowed && !limit.grant && !(limit.limit.atMost && limit.limit.period) && Number(hits ?? 1) > (limit.limit.burst || 0);
const usual = source => ['memory', 'redis'].includes(source); // which goes without saying
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
$('tail-form').addEventListener('submit', e => { e.preventDefault(); tailSeen = true; tailMissed = 0; tailRows.replaceChildren(); tailPaused = false; showPaused(); tailOpen(); });
$('tail-form').elements.outcome.addEventListener('change', () => $('tail-form').requestSubmit());
$('tail-pause').addEventListener('click', () => { tailPaused = !tailPaused; showPaused(); tailOpen(); });
// Watching costs the service a little, so it begins when somebody sees the tail.
new IntersectionObserver(all => { if (all.some(e => e.isIntersecting) && !tailSeen) { tailSeen = true; tailOpen(); } }).observe($('tail'));

// ---- explain

const reasons = {exact: 'matches exactly', wildcard: 'matches the wildcard', key_only: 'matches by its key', usage: 'has the tokens', begin: 'begins a hold', end: 'ends a hold', pair: 'begins a hold, or ends it', no_match: 'matches nothing here', no_holder: 'needs one more entry'};

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
    el('p', {}, el('span', {class: 'tag ' + (denied ? 'warn' : d.matched || (d.limits || []).length ? 'good' : 'note')}, denied ? 'would be denied' : (d.limits || []).length ? 'would pass' : 'is not limited'), ' ', el('code', {}, soft(entriesText(descriptor.entries) + times(descriptor.hits)))),
    el('ol', {}, (d.steps || []).map(s => el('li', {}, el('code', {}, soft(s.key + '=' + (s.value || ''))), ' ' + (reasons[s.reason] || s.reason) + (s.pattern ? ' ' + s.pattern : ''), s.file ? el('small', {}, ' ', near(s.file, s.line)) : ''))),
    el('p', {}, r ? ['Rule ', el('b', {}, soft(d.default ? 'default' : r.path)), ' ', el('small', {}, near(r.file, r.line))] : 'No rule applies.'),
    d.nearestMiss && el('p', {class: 'nearest'}, 'The nearest miss: ', soft(d.nearestMiss.why || ''), ' ', el('small', {}, near(d.nearestMiss.file, d.nearestMiss.line))),
    (d.limits || []).map(l => el('dl', {class: 'facts'},
      el('dt', {}, 'Limit'), el('dd', {}, limitText(l.limit) + ', ' + l.limit.algorithm + (l.grant ? ' (by grant ' + l.grant.id + ': ' + l.grant.reason + ')' : '')),
      el('dt', {}, 'Now'), el('dd', {class: l.allowed ? '' : 'warn'}, (l.blockedUntil ? 'denied' + blockedText(l) : l.allowed ? 'allowed, ' + amount(l.limit, leftOf(l)) + ' left after that' : 'denied, ' + (l.never ? 'always: the limit never has so many hits' : 'the same hits pass in ' + time(seconds(l.retryAfter)))) + '; reset after ' + time(seconds(l.resetAfter)) + (usual(l.source) ? '' : ', ' + sourceText(l.source))),
      (l.limit.schedule || []).length ? [el('dt', {}, 'Schedule'), el('dd', {}, scheduleText(l.limit))] : '',
      l.limit.overlay && [el('dt', {}, 'Overlay'), el('dd', {}, soft(l.limit.overlay))],
      l.limit.escalate && [el('dt', {}, 'Escalate'), el('dd', {}, l.limit.escalate + (l.blocks ? '; ' + l.blocks + (l.blocks === 1 ? ' block' : ' blocks') + ' so far' : ''))],
      l.limit.learned && [el('dt', {}, 'Learned'), el('dd', {}, learnedText(l))],
      el('dt', {}, 'Key'), el('dd', {}, el('code', {}, soft(l.key))))),
    (d.limits || []).length ? el('p', {class: 'line'},
      el('button', {type: 'button', onclick: () => resetKey({domain, entries: descriptor.entries})}, 'Reset'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog({domain, entries: descriptor.entries}, 'factor')}, 'Grant'),
      el('button', {type: 'button', class: 'needs-grants', onclick: () => grantDialog({domain, entries: descriptor.entries}, 'block')}, 'Block')) : '');
}

const scheduleText = l => l.schedule.map(e => soft(e.when + ': ' + e.gives + (e.holds ? ' (now)' : ''))).flatMap(e => [e, '; ']).concat((l.schedule.some(e => e.holds) ? '' : 'no entry holds now; ') + (l.scheduleUntil ? 'next change at ' + l.scheduleUntil : 'no change is known'));

// blockedText says when the block of a key ends, nothing for a key that is not blocked.
const blockedText = l => l.blockedUntil ? ', blocked until ' + clock(l.blockedUntil) : '';

const learnedText = l => (l.learnedEstimate ? 'a begin holds ' + amount(l.limit, Math.min(l.learnedEstimate, l.limit.learned.ceiling)) : 'nothing yet, so the estimate is as sent') + '; to cover ' + l.limit.learned.quantile / 10 + ' %, at most ' + amount(l.limit, l.limit.learned.ceiling);

// ---- what is loaded

function showLoads(l, s) {
  const where = $('loaded-state'), is = JSON.stringify(l);
  put($('up'), time((Date.now() - new Date($('up').dateTime)) / 1000));
  if (where.dataset.is === is) { where.querySelectorAll('time').forEach(t => put(t, ago(t.dateTime))); return; }
  where.dataset.is = is;
  const when = date => date ? el('time', {datetime: date, title: new Date(date).toLocaleString('en-GB')}, ago(date)) : 'not yet';
  const list = (kind, title, all) => (all || []).length ? [el('h3', {}, title), el('ul', {class: 'mistakes ' + kind}, all.slice(0, 100).map(t => el('li', {}, soft(t))), all.length > 100 ? el('li', {}, 'and ' + count(all.length - 100) + ' more') : '')] : '';
  where.replaceChildren(...[el('dl', {class: 'facts'},
    el('dt', {}, 'In force'), el('dd', {}, count(l.rules) + ' rules, since ', when(l.loadedAt)),
    el('dt', {}, 'From'), el('dd', {}, soft((l.sources || []).join(', ') || '–')),
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

let events, eventsTimer, hiddenTimer, opened = 0, news = performance.now(); // news is the time of the last event

// stale says why the figures are old, and dims them.
function stale(why) {
  connected(why, true);
  document.body.classList.add('stale');
  document.body.dataset.level = 'bad';
  level = undefined;
  $('stale').hidden = false;
  put($('stale'), why[0].toUpperCase() + why.slice(1) + (state ? ': the figures are of ' + clock(state.point.t) : '') + '. Weir hangs, has ended, or the way to it is cut: look at its process and its log.');
  document.title = '✕ ' + why + ' · Weir' + ($host ? ' on ' + $host : '');
}
function fresh() {
  news = performance.now();
  if (!$('stale').hidden) { $('stale').hidden = true; document.body.classList.remove('stale'); }
  connected('live');
}
// silent looks whether the service that should send each second does so. A connection may be cut without an end that the browser sees.
function silent() {
  if (document.hidden || !events) return;
  const now = performance.now(), since = (now - news) / 1000;
  if (since >= 5) stale('no news for ' + time(Math.floor(since)));
  if (since >= 30 && now - opened >= 30000) { events.close(); events = undefined; open(); }
}

function connected(text, bad) {
  put($('live'), text);
  $('live').className = bad ? 'live bad' : 'live';
}
function open() {
  clearTimeout(eventsTimer);
  if (events) return;
  if (document.hidden) { leave(); return; }
  opened = performance.now();
  if ($('stale').hidden) news = opened;
  const own = events = new EventSource('/events');
  own.addEventListener('history', e => takeHistory(JSON.parse(e.data)));
  own.addEventListener('state', e => { fresh(); takeState(JSON.parse(e.data)); });
  own.onerror = async () => {
    if (own !== events) return;
    stale('not connected');
    if (own.readyState !== EventSource.CLOSED) return; // the browser tries again
    events = undefined;
    try {
      const answer = await fetch('/events', {headers: {Accept: 'text/plain'}, signal: AbortSignal.timeout(2000)});
      if (answer.status === 401) { location.assign('/login'); return; }
      if (!answer.ok) stale((await answer.text()).trim()); else answer.body.cancel();
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
setInterval(silent, 1000);
const asks = () => !document.hidden && $('stale').hidden; // a service that hangs gets no more questions
setInterval(() => {
  if (!asks()) return;
  if (hasKeys) {
    askMostDenied();
    allKeys.refresh(); for (const row of rows.values()) { if (row.keys) row.keys.refresh(); if (row.usage) row.usage.refresh(); } }
}, 2000);
const hasQuotas = has('quotas');
setInterval(() => { if (asks() && hasQuotas) refreshQuotas(); }, 2000);
if (hasQuotas) refreshQuotas();
setInterval(() => { if (asks()) refreshGrants(); }, 5000);
if (hasKeys) allKeys.refresh();
refreshGrants();
open();
