// The limits that are divided among Envoys: one bar for each limit, cut by Envoy.
'use strict';

const quotaStates = {BUCKET: '', DENY_ALL: 'must deny all', ALLOW_ALL: 'may allow all', GONE: 'gone', LEAVING: 'idle', NONE: 'no assignment', FIRST: 'first assignment under way', EXPIRED: 'may have expired'};
const cuts = 6; // colors
const stateOf = s => (s.state || '').replace('QUOTA_STATE_', '');
const envoyOf = s => [s.name, s.peer].filter(Boolean).join(' ');

// quotaPanel is one limit.
function quotaPanel(q) {
  const shares = q.shares || [], shown = shares.slice(0, 20), rate = Number(q.rate || 0);
  const bar = el('span', {class: 'bar cut', 'aria-hidden': 'true'}, shown.map((s, i) => {
    const piece = el('i', {class: 'cut-' + i % cuts, title: envoyOf(s)});
    piece.style.width = rate > 0 ? (100 * Math.min(1, (s.rate || 0) / rate)).toFixed(2) + '%' : '0';
    return piece;
  }));
  const rows = shown.map((s, i) => el('tr', {class: s.remark ? 'warn' : ''},
    el('th', {scope: 'row'}, el('i', {class: 'dot cut-' + i % cuts, 'aria-hidden': 'true'}), soft(envoyOf(s)), s.remark ? el('small', {class: 'change warn'}, soft(s.remark)) : ''),
    el('td', {class: 'n', 'data-label': 'Demand'}, s.demand === undefined ? '?' : rateOf(s.demand)),
    el('td', {class: 'n', 'data-label': 'Part'}, s.tokens ? rateOf(s.rate || 0) + ' · ' + part(s.rate || 0, rate) : '–'),
    el('td', {class: 'n', 'data-label': 'Used'}, s.tokens && s.span && s.rate ? part(Number(s.allowed || 0) / seconds(s.span), s.rate) : '–'),
    el('td', {'data-label': 'Report'}, time(seconds(s.reported)) + ' ago'),
    el('td', {'data-label': 'State'}, [quotaStates[stateOf(s)], s.unacknowledged ? 'unacknowledged' : ''].filter(Boolean).join(', '))));
  return el('div', {class: 'panel quota'},
    el('p', {class: 'line'}, el('b', {}, soft(entriesText(q.entries))), el('span', {class: 'domain'}, q.domain), near(q.file || '', q.line),
      el('span', {class: 'note'}, q.file ? rateOf(q.assigned || 0) + ' of ' + rateOf(rate) + ' assigned, demand ' + rateOf(q.demand || 0) : 'no limit is divided')),
    q.file ? bar : '',
    el('table', {class: 'cards'}, el('thead', {}, el('tr', {}, ['Envoy', 'Demand', 'Part', 'Used', 'Report', 'State'].map(t => el('th', {scope: 'col'}, t)))), el('tbody', {}, rows)),
    shares.length > shown.length ? el('p', {class: 'note'}, 'and ' + count(shares.length - shown.length) + ' more Envoys') : '');
}

async function refreshQuotas() {
  let a;
  try { a = await call('ListQuotas', {most: 20}); } catch { return; }
  const quotas = a.quotas || [], all = Number(a.number || 0);
  $('quotas').hidden = $('quotas-link').hidden = !quotas.length;
  put($('quotas-number'), count(all) + ', ' + count(a.streams || 0) + ' streams of Envoys' + (all > quotas.length ? '; the first ' + quotas.length + ' are shown' : ''));
  $('quotas-rows').replaceChildren(...quotas.map(quotaPanel));
}
