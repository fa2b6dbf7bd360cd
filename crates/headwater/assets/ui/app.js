// The frame: rail, top bar, routes, keys, dialogs.
import { h, $, fill, text, num, rate } from './dom.js';
import { ask, begin, core, live, on, retry, scope, setScope } from './live.js';
import { go, hrefOf } from './route.js';
import { overview } from './overview.js';
import { table } from './table.js';
import { object } from './object.js';
import { river } from './river.js';
import { connection } from './connection.js';

// The secret of the address was used; a reload needs only the cookie.
if (location.search) history.replaceState(null, '', '/' + location.hash);

const icon = (d, s = 16) => h('svg:svg', { class: 'icon', width: s, height: s, viewBox: '0 0 16 16', 'aria-hidden': 'true' }, d.split('|').map((p) => h('svg:path', { d: p })));
const I = {
  mark: 'M1 3.2c5 0 5 4.8 9.2 4.8|M1 8h14|M1 12.8c5 0 5-4.8 9.2-4.8',
  overview: 'M2.5 2.5h4.5v4.5H2.5z|M9 2.5h4.5v4.5H9z|M2.5 9h4.5v4.5H2.5z|M9 9h4.5v4.5H9z',
  river: 'M1 5c2.3 0 2.3 2 4.7 2s2.3-2 4.6-2 2.4 2 4.7 2|M1 10c2.3 0 2.3 2 4.7 2s2.3-2 4.6-2 2.4 2 4.7 2',
  conn: 'M2 11a8.5 8.5 0 0 1 12 0|M4.6 13.4a5 5 0 0 1 6.8 0|M2 8.3A10 10 0 0 1 14 8.3', kinds: 'M2 4h12|M2 8h12|M2 12h12',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z|M10.3 10.3l3.2 3.2', theme: 'M8 2a6 6 0 1 0 0 12z|M8 2a6 6 0 0 1 0 12', help: 'M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.6|M8 12.2v.1', close: 'M4 4l8 8|M12 4l-8 8',
};
// ---- top bar
const rev = h('span', { class: 'tnum' }), per = h('span', { class: 'tnum wide-only per' }), word = h('span', { class: 'cword' });
const pill = h('a', { class: 'pill', href: '#/connection', 'aria-label': 'Connection' }, h('span', { class: 'cdot c-live' }), word, rev, per);
const ns = h('select', { class: 'select', 'aria-label': 'Namespace', onchange: () => { setScope(ns.value); view?.scope?.(); rail(); ns.blur(); } });
let namespaceNames = [];
function namespaces() { const names = namespaceNames.slice().sort(); if (names.join() !== ns.dataset.names) { ns.dataset.names = names.join(); const v = ns.value; fill(ns, h('option', { value: '' }, 'All namespaces'), names.map((n) => h('option', { value: n }, n))); ns.value = v; } }
const theme = () => { const r = document.documentElement, dark = r.dataset.theme === 'dark'; r.dataset.theme = dark ? 'light' : 'dark'; try { localStorage.setItem('hw-theme', r.dataset.theme); } catch { /* storage is off */ } view?.theme?.(); };
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => view?.theme?.());
const where = h('span', { class: 'where wide-only' });
const bar = h('header', { class: 'top' },
  h('a', { class: 'brand', href: '#/overview', 'aria-label': 'Headwater, overview' }, icon(I.mark, 18), h('b', {}, 'Headwater')),
  where, h('span', { class: 'slash wide-only', 'aria-hidden': 'true' }, '/'), ns,
  h('div', { class: 'grow' }),
  h('button', { class: 'jump', type: 'button', onclick: () => jump(), 'aria-label': 'Go to anything' }, icon(I.search, 14), h('span', {}, 'Go to anything'), h('kbd', {}, '/')),
  h('div', { class: 'grow' }), pill,
  h('button', { class: 'ib', type: 'button', title: 'Light or dark (t)', 'aria-label': 'Light or dark', onclick: theme }, icon(I.theme)),
  h('button', { class: 'ib wide-only', type: 'button', title: 'Keys (?)', 'aria-label': 'Keys', onclick: () => help() }, icon(I.help)));
const note = h('div', { class: 'note-bar', role: 'status', 'aria-live': 'polite', hidden: true });

// ---- rail
const railEl = h('nav', { class: 'rail', 'aria-label': 'Views and kinds' }), railN = new Map();
const link = (href, label, ic, k) => h('a', { class: 'rl', href, 'data-r': href }, ic ? icon(ic) : null, h('span', { class: 'grow' }, label), k ? h('kbd', {}, k) : null);
railEl.append(link('#/overview', 'Overview', I.overview, 'g o'), link('#/river', 'River', I.river, 'g r'), link('#/connection', 'Connection', I.conn, 'g c'));
const kindsEl = h('div', {});
railEl.append(kindsEl);
let railKey = '';
function rail() { // kinds that have objects, and the usual ones
  const here = location.hash.split('/')[2];
  const list = [...live.kinds.values()].filter((k) => k.n || k.core || k.denied || k.rail === 'Custom' || k.id === here), key = list.map((k) => k.id).join();
  if (key !== railKey) {
    railKey = key; railN.clear(); kindsEl.replaceChildren();
    for (const g of new Set(list.map((k) => k.rail))) {
      kindsEl.append(h('h2', {}, g));
      for (const k of list) if (k.rail === g) { const n = h('span', { class: 'tnum n' }); railN.set(k, n); kindsEl.append(h('a', { class: 'rl k', href: '#/t/' + k.id, 'data-r': '#/t/' + k.id }, h('span', { class: 'grow clip' }, k.id), n)); }
    }
    mark();
  }
  for (const [k, n] of railN) { text(n, k.denied ? '–' : k.live ? '' : num(k.n)); n.classList.toggle('zero', !k.n); }
}
function mark() {
  const path = (location.hash || '#/overview').slice(2).split('?')[0], [a, b] = path.split('/');
  for (const l of document.querySelectorAll('[data-r]')) { const me = l.dataset.r === '#/' + path || (a === 'o' && l.dataset.r === '#/t/' + b) || (l.dataset.r === '#kinds' && (a === 't' || a === 'o')); l.toggleAttribute('aria-current', me); if (me) l.setAttribute('aria-current', 'page'); }
}
const tabs = h('nav', { class: 'tabs', 'aria-label': 'Views' }, [['#/overview', 'Overview', I.overview], ['#kinds', 'Kinds', I.kinds], ['#/river', 'River', I.river], ['#/connection', 'Connection', I.conn]].map(([href, label, ic]) => h('a', { href, 'data-r': href, onclick: (e) => { if (href === '#kinds') { e.preventDefault(); document.body.classList.toggle('railopen'); } else document.body.classList.remove('railopen'); } }, icon(ic, 18), label)));
const main = h('main', { id: 'main', tabindex: '-1' });
const chord = h('div', { class: 'chord', role: 'status', hidden: true });

fill($('#app'), bar, note, railEl, main, tabs, chord);

// ---- connection, everywhere
const WORD = { open: 'Connecting', live: 'Live', lost: 'Reconnecting', relist: 'Listing again' };
let noteTimer = 0;
function conn() {
  const [host] = /[^/]+$/.exec(live.session.server || '') || ['']; text(where, host);
  pill.firstChild.className = 'cdot c-' + live.state; pill.dataset.s = live.state; text(word, WORD[live.state]);
  document.body.classList.toggle('stale', live.state !== 'live');
  const n = live.note;
  clearTimeout(noteTimer);
  if (!n) { note.hidden = true; return; }
  note.hidden = false; note.dataset.k = n.kind;
  fill(note, h('span', { class: 'cdot c-' + { lost: 'lost', relist: 'relist', resumed: 'live', relisted: 'live' }[n.kind] }), h('b', {}, n.text), h('span', { class: 'nd' }, n.detail), h('div', { class: 'grow' }), n.kind === 'lost' ? h('button', { class: 'btn', type: 'button', onclick: () => retry() }, 'Try now') : null, h('button', { class: 'ib', type: 'button', 'aria-label': 'Dismiss', onclick: () => { live.note = null; conn(); } }, icon(I.close, 14)));
  if (n.kind === 'resumed') noteTimer = setTimeout(() => { live.note = null; conn(); }, 6000);
}
on((m) => {
  if (m.conn) conn();
  if (m.byFeed || m.second) text(rev, live.rev ? 'revision ' + num(live.rev) : '');
  if (m.kinds) { rail(); namespaces(); if (!view) route(); }
  if (m.second) { rail(); names(); text(per, live.state === 'live' ? rate(live.perSec) + '/s' : live.rev ? 'held' : ''); }
});

// ---- routes
let view = null;
async function names() { const k = live.kinds.get('namespaces'); if (k && (k.all !== namespaceNames.length || k.rate > 0)) { namespaceNames = await ask({ names: 'namespaces' }); namespaces(); } }
function route() {
  if (!live.kinds.size) return waiting();
  const hash = location.hash || '#/overview', [path, q] = hash.slice(2).split('?'), [a, b, ...rest] = path.split('/');
  view?.destroy?.(); document.body.classList.remove('railopen');
  view = a === 't' ? table(b, q && decodeURIComponent(q)) : a === 'o' ? object(b, rest.map(decodeURIComponent).join('/')) : a === 'river' ? river() : a === 'connection' ? connection() : overview();
  main.replaceChildren(view.el);
  rail(); mark();
  document.title = (view.title ? view.title + ' · ' : '') + 'Headwater';
  view.ready?.();
}
addEventListener('hashchange', route);
function waiting() {
  const t = live.trouble;
  view = null;
  main.replaceChildren(h('section', { class: 'view' }, h('div', { class: 'state' }, t ? [h('div', { class: 'big' }, t.code || '~'), h('h2', {}, t.code === 401 ? 'Please open the page again' : 'The server cannot be reached'), h('p', {}, t.message), t.code === 401 ? null : h('p', { class: 'sub' }, 'The page goes on trying.')] : h('h2', {}, 'Connecting'))));
}

// ---- dialogs
const dlg = h('dialog', { class: 'dlg', onclick: (e) => { if (e.target === dlg) dlg.close(); } });
document.body.append(dlg);
function help() {
  const K = (keys, what) => h('div', { class: 'hk' }, h('span', {}, keys.split(' ').map((k) => h('kbd', {}, k))), h('span', {}, what));
  dlg.className = 'dlg helpdlg';
  fill(dlg, h('h2', {}, 'Keys'), h('div', { class: 'hcols' },
    h('div', {}, h('h3', {}, 'Go'), K('/', 'search, or filter the table'), K('g o', 'overview'), K('g p', 'pods'), K('g d', 'deployments'), K('g n', 'nodes'), K('g e', 'events'), K('g r', 'river'), K('g c', 'connection'), K('Esc', 'back, one step up')),
    h('div', {}, h('h3', {}, 'In a table'), K('j k', 'down, up'), K('G', 'last row'), K('↵', 'open the row'), K('w', 'all columns'), K('r', 'latest change first'), h('h3', {}, 'In an object'), K('← →', 'older, newer version'), K('⇧← ⇧→', 'compare from another'), K('d', 'difference'), K('End', 'follow the newest'), h('h3', {}, 'Page'), K('n', 'namespace'), K('t', 'light or dark'), K('?', 'this list'))),
    h('button', { class: 'btn', type: 'button', onclick: () => dlg.close() }, 'Close', h('kbd', {}, 'Esc')));
  dlg.showModal();
}
function jump() {
  let sel = 0, best = [];
  const box = h('input', { class: 'jbox', type: 'search', placeholder: 'Kind, namespace or the name of an object', 'aria-label': 'Go to', autocomplete: 'off', spellcheck: 'false' }), list = h('div', { class: 'jlist', role: 'listbox' });
  let asking = 0;
  const find = async () => {
    const q = box.value.toLowerCase().trim(), mine = ++asking, hits = [];
    for (const [n, href] of [['Overview', '#/overview'], ['River', '#/river'], ['Connection', '#/connection']]) if (n.toLowerCase().includes(q)) hits.push([n, 'view', href]);
    for (const k of live.kinds.values()) if (k.id.includes(q)) hits.push([k.id, k.apiVersion, '#/t/' + k.id, k.denied || k.live ? '' : num(k.n)]);
    if (q.length > 1) for (const [id, key] of await ask({ find: q })) { const k = live.kinds.get(id); if (k) hits.push([key.split('/').pop(), `${k.kind}${key.includes('/') ? ' in ' + key.split('/')[0] : ''}`, hrefOf(id, key)]); }
    if (mine !== asking) return;
    const score = (n) => (n === q ? 0 : n.startsWith(q) ? 1 : 2); if (q) hits.sort((x, y) => score(x[0]) - score(y[0]) || x[0].length - y[0].length);
    best = hits.slice(0, 12); sel = Math.min(sel, Math.max(0, best.length - 1)); draw();
  };
  const draw = () => fill(list, best.length ? best.map((x, i) => h('a', { class: 'jh' + (i === sel ? ' on' : ''), role: 'option', 'aria-selected': String(i === sel), href: x[2], onclick: () => dlg.close() }, h('b', {}, x[0]), h('span', { class: 'sub' }, x[1]), h('span', { class: 'grow' }), x[3] ? h('span', { class: 'sub tnum' }, x[3]) : null)) : h('p', { class: 'quiet' }, 'Nothing is called that.'));
  box.addEventListener('input', () => { sel = 0; find(); });
  box.addEventListener('keydown', (e) => { if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); sel = (sel + (e.key === 'ArrowDown' ? 1 : best.length - 1)) % (best.length || 1); draw(); } if (e.key === 'Enter' && best[sel]) { dlg.close(); go(best[sel][2]); } });
  dlg.className = 'dlg jumpdlg'; fill(dlg, box, list); find(); dlg.showModal(); box.focus();
}

// ---- keys
const GO = { o: ['overview', '#/overview'], p: ['pods', '#/t/pods'], d: ['deployments', '#/t/deployments'], n: ['nodes', '#/t/nodes'], e: ['events', '#/t/events'], s: ['services', '#/t/services'], m: ['configmaps', '#/t/configmaps'], r: ['river', '#/river'], c: ['connection', '#/connection'] };
let pending = 0;
const unchord = () => { clearTimeout(pending); pending = 0; chord.hidden = true; };
addEventListener('keydown', (e) => {
  if (e.metaKey || e.ctrlKey || e.altKey || dlg.open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName);
  if (e.key === 'Escape') { if (pending) return unchord(); if (typing) { if (e.target.value && e.target.type === 'search') { e.target.value = ''; e.target.dispatchEvent(new Event('input')); } else { e.target.blur(); view?.vt?.el.focus(); } return; } if (document.body.classList.contains('railopen')) return document.body.classList.remove('railopen'); go(view?.back || '#/overview'); return; }
  if (typing) return;
  if (pending) { const g = GO[e.key]; unchord(); if (g) { e.preventDefault(); go(g[1]); } return; }
  const vt = view?.vt;
  switch (e.key) {
    case 'g': fill(chord, h('span', { class: 'sub' }, 'Go to'), Object.entries(GO).map(([k, [n]]) => h('span', {}, h('kbd', {}, k), n))); chord.hidden = false; pending = setTimeout(unchord, 2500); return;
    case '/': e.preventDefault(); if (view?.filter) { view.filter.focus(); view.filter.select(); } else jump(); return;
    case '?': help(); return;
    case 't': theme(); return;
    case 'n': ns.focus(); ns.showPicker?.(); e.preventDefault(); return;
  }
  if (vt) { const page = Math.floor(vt.el.clientHeight / vt.rowH) - 2, by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page, G: 1e9, Home: -1e9, End: 1e9 }[e.key]; if (by) { e.preventDefault(); vt.move(by); return; } if (e.key === 'Enter' && e.target === document.body) vt.open(); }
  view?.key?.(e);
});
on((m) => { if (m.conn && !live.kinds.size) waiting(); });
conn(); route();
begin();
