// Elements and texts of the admin page, and its questions. Every text is written as text, never as markup.
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
const money = new Intl.NumberFormat('en', {minimumFractionDigits: 2, maximumFractionDigits: 6});
// amount is hits of a limit: a number, or the money of a budget.
const amount = (l, n) => l && l.money ? money.format(n / 1e6) : count(n);
// hitsOf and leftOf are numbers that have a second field for more than 32 bits.
const hitsOf = l => Number(l.largeRequests) || l.requestsPerUnit || 0;
const leftOf = l => Number(l.largeRemaining) || l.remaining || 0;
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
// soft returns a text that may break behind a comma, in a long part behind other separators too, and in a very long word.
function soft(text) {
  const all = document.createDocumentFragment();
  const parts = text.split(/(?<=,)/).flatMap(p => p.length <= 24 ? [p] : p.split(/(?<=[/=:._&?-])(?![/=:._&?-])/)).flatMap(p => p.match(/.{1,40}/gsu) || [p]);
  parts.forEach((part, i) => all.append(...(i ? [el('wbr'), part] : [part])));
  return all;
}
const entriesText = entries => (entries || []).map(e => e.key + '=' + (e.value || '')).join(',');
const place = (file, line) => file ? file + (line ? ':' + line : '') : '';
// near shortens a place to the name of the file, with the whole place as a title.
const near = (file, line) => file ? el('span', {title: place(file, line)}, soft(place(file.slice(file.lastIndexOf('/') + 1), line))) : '';
function limitText(l) {
  if (!l) return '';
  const period = l.period ? ' per ' + unit(l) : ' at once';
  const burst = l.burst && l.burst !== l.requestsPerUnit ? ', burst ' + amount(l, l.burst) : '';
  return amount(l, hitsOf(l)) + period + burst;
}
const unit = l => l.unit ? (l.unitMultiplier > 1 ? l.unitMultiplier + ' ' + l.unit + 's' : l.unit) : time(seconds(l.period));

// ---- asking the service

class Refused extends Error { constructor(code, text) { super(text); this.code = code; } }

async function call(method, request) {
  let answer;
  try {
    answer = await fetch('/api/' + method, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(request), signal: AbortSignal.timeout(15000)});
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
