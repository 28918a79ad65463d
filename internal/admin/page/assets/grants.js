// The grants of the admin page, and their form.
'use strict';

function grantDialog(k, gives) {
  const f = $('grant-form').elements;
  f.domain.value = k ? k.domain : '';
  f.entries.value = k ? entriesText(k.entries) : '';
  f.gives.value = gives;
  f.by.value = localStorage.getItem('by') || '';
  f.reason.value = '';
  $('grant-error').hidden = true;
  $('grant-form').dataset.entries = k ? JSON.stringify(k.entries) : '';
  put($('grant-title'), gives === 'block' ? 'Block one key' : gives === 'add' ? 'More for one key in this window' : 'Another limit for one key');
  $('grant-dialog').showModal();
  previewGrant();
  (k ? f.reason : f.domain).focus();
}
// parseEntries reads "key=value,key=value". Values with a comma need the button of a key.
function parseEntries(text) {
  return text.split(',').map(part => part.trim()).filter(Boolean).map(part => {
    const at = part.indexOf('=');
    return at < 0 ? {key: part, value: ''} : {key: part.slice(0, at), value: part.slice(at + 1)};
  });
}
// grantEntries returns the entries of the form: those of the button that opened it, until somebody changes them.
function grantEntries() {
  const form = $('grant-form'), known = form.dataset.entries && JSON.parse(form.dataset.entries), text = form.elements.entries.value;
  return known && entriesText(known) === text ? known : parseEntries(text);
}
// labelOf names one of several limits of a rule, as a grant names it.
const labelOf = l => l.limit.name || l.key.slice(l.key.lastIndexOf('#') + 1);
// explained asks for the rule of the form, without a charge.
async function explained() {
  const f = $('grant-form').elements, domain = f.domain.value.trim(), entries = grantEntries();
  if (!domain || !entries.length || entries.some(e => !e.key)) return undefined;
  const a = await call('Explain', {domain, descriptors: [{entries, hits: 0}]});
  return {domain: a.domain, knownDomains: a.knownDomains || [], ...(a.descriptors || [])[0]};
}
let previews = 0, previewTimer, addsMoney = false;
// added returns the hits that the form adds. Those of a budget are millionths.
const added = () => Math.round(Number($('grant-form').elements.add.value) * (addsMoney ? 1e6 : 1));
// previewGrant shows which limit the form is about, and what it will be.
async function previewGrant() {
  const mine = ++previews, f = $('grant-form').elements, where = $('grant-preview');
  let d;
  try { d = await explained(); } catch (e) { d = {error: e.message}; }
  if (mine !== previews) return; // an older answer
  const limits = d && d.limits || [], only = f.limit.value, names = limits.length > 1 ? limits.map(labelOf) : [];
  if (f.limit.dataset.is !== names.join('\n')) {
    f.limit.dataset.is = names.join('\n');
    f.limit.replaceChildren(el('option', {value: ''}, 'all limits of the rule'), ...names.map(n => el('option', {value: n}, n)));
    f.limit.value = names.includes(only) ? only : '';
  }
  $('grant-which').hidden = !names.length;
  $('grant-for').hidden = f.gives.value === 'add'; // which ends with the window
  addsMoney = limits.some(l => l.limit.money && (!f.limit.value || labelOf(l) === f.limit.value));
  put($('grant-more'), addsMoney ? 'more money' : 'more hits');
  where.className = d && (d.error || !limits.length) ? 'warn' : 'note';
  if (!d) where.replaceChildren('The rule of the key shows here.');
  else if (d.error) where.replaceChildren(soft(d.error));
  else if (!d.domain) where.replaceChildren('The domain has no rules. There are: ' + listed(d.knownDomains) + '.');
  else if (!limits.length) where.replaceChildren(d.rule ? 'The rule has no limit to change. ' : 'No rule matches, so there is no limit to change. ', soft(d.nearestMiss && d.nearestMiss.why || ''));
  else where.replaceChildren(d.default ? 'No rule matches this key: it has the default limit' : el('span', {}, 'Rule ', el('b', {}, soft(d.rule.path))), ' (', near(d.rule.file, d.rule.line), '). ',
    ...limits.map((l, i) => el('span', {class: 'change'}, limitText(l.limit), ' → ', el('b', {}, !f.limit.value || labelOf(l) === f.limit.value ? afterGrant(l, d.rule.limits[i]) : 'the same'))),
    limits.every(l => !seconds(l.resetAfter)) ? el('span', {class: 'change warn'}, 'No hits are counted for this key now. Is it spelled as Envoy sends it?') : '');
}
// afterGrant returns a limit as the form would make it. A factor counts from the number of the rule, not from an earlier grant.
function afterGrant(l, own) {
  const f = $('grant-form').elements, gives = f.gives.value, per = l.limit.period ? ' per ' + unit(l.limit) : ' at once';
  if (gives === 'unlimited') return 'no limit';
  if (gives === 'block') return 'blocked';
  if (gives === 'number') return amount(l.limit, Number(f.number.value)) + per;
  if (gives === 'add') return amount(l.limit, hitsOf(l.limit) + added()) + ' in this window';
  const base = l.grant && !own.table ? own : l.limit;
  return l.grant && own.table ? some.format(Number(f.factor.value)) + ' times the number of the table' : amount(l.limit, Math.max(1, Math.round(hitsOf(base) * Number(f.factor.value)))) + per;
}
$('grant-form').addEventListener('input', () => { clearTimeout(previewTimer); previewTimer = setTimeout(previewGrant, 200); });
$('grant-form').addEventListener('submit', async event => {
  event.preventDefault();
  const f = $('grant-form').elements;
  const grant = {
    domain: f.domain.value.trim(), entries: grantEntries(), limit: f.limit.value,
    reason: f.reason.value.trim(), by: f.by.value.trim(),
  };
  const large = n => n > 4294967295;
  if (f.gives.value !== 'add') grant.until = new Date(Date.now() + 1000 * Number(f.for.value)).toISOString();
  if (f.gives.value === 'add') grant[large(added()) ? 'largeAdd' : 'add'] = added();
  else if (f.gives.value === 'factor') grant.factor = Number(f.factor.value);
  else if (f.gives.value === 'number') grant[large(Number(f.number.value)) ? 'largeRequests' : 'requestsPerUnit'] = Number(f.number.value);
  else if (f.gives.value === 'unlimited') grant.unlimited = true;
  else grant.requestsPerUnit = 0;
  localStorage.setItem('by', grant.by);
  try {
    const a = await call('Grant', {grant});
    $('grant-dialog').close('ok');
    say('Granted until ' + new Date(a.grant.until).toLocaleString('en-GB') + ', kept ' + (a.kept || 'here') + '. ' + givenText(a), a.default || a.noHits);
    refreshGrants();
  } catch (e) {
    $('grant-error').hidden = false;
    put($('grant-error'), e.message);
  }
});
// givenText says which limits a grant has changed, and warns where the entries may be wrong.
function givenText(a) {
  if (!a.rule) return '';
  const after = l => !l.after ? 'no limit' : l.after.requestsPerUnit ? limitText(l.after) : 'blocked';
  return (a.default ? 'The default limit' : 'Rule ' + a.rule.path) + ' (' + place(a.rule.file, a.rule.line).split('/').pop() + '), ' + entriesText(a.grant.entries) + ': ' +
    (a.limits || []).map(l => limitText(l.before) + ' → ' + after(l)).join('; ') + '.' +
    (a.default ? ' No rule but the default matches: ' + a.nearestMiss.why + '.' : '') + (a.noHits ? ' The key has no hits now, so the entries may be wrong.' : '');
}
document.querySelectorAll('dialog .cancel').forEach(b => b.addEventListener('click', () => b.closest('dialog').close('cancel')));
$('grant-new').addEventListener('click', () => grantDialog(undefined, 'factor'));

const givesText = g => g.unlimited ? 'no limit' : g.factor !== undefined ? some.format(g.factor) + ' times its limit' : g.add || g.largeAdd ? count(Number(g.largeAdd || g.add)) + ' more in one window' : hitsOf(g) ? count(hitsOf(g)) + ' per period' : 'blocked';

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
      el('th', {scope: 'row'}, el('code', {title: g.key || ''}, soft(entriesText(g.entries))), el('small', {}, soft(g.domain + (g.rule ? ': ' + g.rule : '')))),
      el('td', {'data-label': 'Gets'}, givesText(g) + (g.limit ? ' of ' + g.limit : '')),
      el('td', {'data-label': 'Ends in'}, el('time', {datetime: g.until, title: new Date(g.until).toLocaleString('en-GB')})),
      el('td', {'data-label': 'Reason'}, g.reason || '', g.by ? el('small', {}, 'by ' + g.by) : ''),
      el('td', {class: 'actions'}, el('button', {type: 'button', 'aria-label': 'Revoke the grant of ' + entriesText(g.entries), onclick: () => revoke(g)}, 'Revoke')))))) : el('p', {class: 'note'}, 'No key has a grant. A grant gives one key another limit, until a time.'));
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
