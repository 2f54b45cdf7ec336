// Which page, its data every two seconds, and the token that the data needs.

import { age, h, renew, show } from './dom.js';
import { fleetReset } from './fleet.js';
import { route } from './views.js';

const EVERY = 2000;
const SLOW = 5000; // An answer that takes longer is missed.
const KEY = 'aliquot-token';
const main = document.getElementById('main');
const state = document.getElementById('state');
const leave = document.getElementById('leave');
const stale = document.getElementById('stale');
const find = document.getElementById('find');

let here = null; // The route that is shown.
let shown = null; // The answer that is shown.
let timer = 0;
let renewed = false; // The address changed, and fields are to say so.
let turn = 0; // Answers of older turns are dropped.
let answered = 0; // When the answer that is shown came; 0: none has.
let asked = 0; // When the question went out that is not answered yet; 0: none is open.
let failed = false; // The last question got no answer.

function say(words, bad = false) {
  if (state.textContent !== words) state.textContent = words;
  state.classList.toggle('bad', bad);
}

/** A bar across the page while the scheduler is gone or slow: how old is what is shown? */
function watch() {
  const gone = failed || (asked > 0 && Date.now() - asked > SLOW);
  stale.hidden = !gone;
  main.classList.toggle('old', gone);
  if (!gone) return;
  // A screen reader hears that once; the age alone changes.
  if (!stale.firstChild) stale.append(h('b', {}, 'The scheduler does not answer.'), ' ', h('span', { id: 'age', 'aria-live': 'off' }));
  const words = answered ? `This page is ${age(answered)} old, and is asked for again every 2 s.` : 'Nothing was read yet; it is asked again every 2 s.';
  document.getElementById('age').textContent = words;
}

function put(title, parts) {
  document.title = `${title} - Aliquot`;
  const focus = document.activeElement?.id;
  show(main, h('h1', { id: 'title' }, title), ...parts);
  // A row that moved takes the focus with it.
  if (focus && document.activeElement?.id !== focus) document.getElementById(focus)?.focus({ preventScroll: true });
}

// The token lives as long as this tab, and nowhere else.
function ask(why) {
  const field = h('textarea', { id: 'token', autocomplete: 'off', spellcheck: 'false', required: true });
  const take = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, document.getElementById('token').value.trim());
    main.replaceChildren();
    load();
  };
  put('Who are you?', [h('p', { class: 'bad', id: 'why' }, why),
    h('p', {}, 'This page shows what your Kubernetes token may list. To make one: '), h('pre', {}, 'kubectl create token ACCOUNT --audience aliquot.dev/page --duration 8h'),
    h('form', { id: 'ask', onsubmit: take }, h('label', {}, 'Token', field), h('button', { id: 'enter' }, 'Show'))]);
  document.getElementById('token').focus();
}

// By address: the last response, and its tag.
const known = new Map();

class Unknown extends Error {}

async function get(address, headers) {
  const before = known.get(address);
  const answer = await fetch(address, { headers: before ? { ...headers, 'if-none-match': before.tag } : headers, cache: 'no-store' });
  if (answer.status === 304) return before.body;
  const body = await answer.json();
  if (answer.status === 401) throw new Unknown(body.error);
  if (!answer.ok) return { error: body.error };
  known.set(address, { tag: answer.headers.get('etag') ?? '', body });
  return body;
}

// By address: answers to what is asked once, as it takes long; null until there is one.
const tried = new Map();

function once(address, headers) {
  if (!tried.has(address)) {
    tried.set(address, null);
    get(address, headers).catch((error) => ({ error: error.message })).then((body) => {
      tried.set(address, body);
      load();
    });
  }
  return tried.get(address);
}

/** What the page needs; the answers of other pages are forgotten. A place of `{once}` is not waited for. */
async function gather(wanted, headers) {
  const address = typeof wanted.data === 'function' ? wanted.data() : wanted.data;
  const body = await get(address, headers);
  const places = body.error || !wanted.more ? [] : Object.entries(wanted.more(body));
  const of = (place) => place.once ?? place;
  const ask = (place) => (place.once ? once(place.once, headers) : get(place, headers));
  const answers = await Promise.all(places.map(async ([name, place]) => [name, await ask(place)]));
  const used = new Set([address, ...places.map(([, place]) => of(place))]);
  for (const answers of [known, tried]) for (const place of answers.keys()) if (!used.has(place)) answers.delete(place);
  return { body, more: Object.fromEntries(answers) };
}

async function load() {
  clearTimeout(timer);
  const mine = ++turn;
  const wanted = here;
  if (!wanted) return;
  const token = sessionStorage.getItem(KEY);
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  leave.hidden = !token;
  asked = Date.now();
  try {
    const { body, more } = await gather(wanted, headers);
    if (mine !== turn) return;
    answered = Date.now();
    failed = false;
    if (body.error) {
      shown = null;
      const why = [h('p', {}, body.error)];
      if (body.error.startsWith('you may not list')) why.push(h('p', {}, 'An admin can grant that right. ', h('code', {}, 'kubectl auth can-i --list'), ' shows what you may do.'));
      put('Nothing to show', why);
    } else {
      shown = { wanted, body, more };
      if (renewed) renew();
      renewed = false;
      redraw();
    }
    say('Live');
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Unknown) {
      forget();
      leave.hidden = true;
      failed = false;
      say('');
      if (!document.getElementById('ask')) ask(token ? error.message : '');
      return;
    }
    failed = true;
    say('No answer', true);
  } finally {
    if (mine === turn) {
      asked = 0;
      watch();
    }
  }
  if (!wanted.once) schedule();
}

/** The last answer once more: the cursor or the window has moved. */
function redraw() {
  if (!shown || shown.wanted !== here) return;
  const { wanted, body, more } = shown;
  put(...wanted.view(body, { ...wanted, more }));
  wanted.after?.();
}

function forget() {
  sessionStorage.removeItem(KEY);
  known.clear();
  tried.clear();
  fleetReset();
  shown = null;
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(load, EVERY);
}

function move(first) {
  const next = route(location.hash || '#/');
  const same = next && here && next.view === here.view && next.uid === here.uid && next.name === here.name;
  here = next;
  for (const link of document.querySelectorAll('nav a')) {
    const on = next && link.getAttribute('href') === `#/${next.page}`;
    if (on) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (!next) {
    turn += 1;
    put('No such page', [h('p', {}, 'Choose one above.')]);
    return;
  }
  if (same && shown && next.instant) {
    // Another picture of what is there already.
    shown = { ...shown, wanted: next };
    renew();
    redraw();
  }
  renewed = same;
  if (!same) {
    answered = 0;
    main.replaceChildren(h('p', {}, 'Loading…'));
    // A change of page by keyboard moves the focus to its top.
    if (!first) main.focus();
  }
  load();
}

document.getElementById('search').addEventListener('submit', (event) => {
  event.preventDefault();
  if (find.value.trim()) location.hash = `#/search?${new URLSearchParams({ filter: find.value.trim() })}`;
});
document.addEventListener('keydown', (event) => {
  const typing = event.target.closest?.('input, textarea, select');
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    find.focus();
  }
  if (event.key === 'Escape' && event.target === find) main.focus();
});
setInterval(watch, 1000);
leave.addEventListener('click', () => {
  forget();
  main.replaceChildren();
  load();
});
window.addEventListener('redraw', redraw);
window.addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
window.addEventListener('hashchange', () => { if (location.hash !== '#main') move(false); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) load(); });
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
move(true);
