// Which page, its data every two seconds, and the token that the data needs.

import { h, show } from './dom.js';
import { route } from './views.js';

const EVERY = 2000;
const KEY = 'aliquot-token';
const main = document.getElementById('main');
const state = document.getElementById('state');
const leave = document.getElementById('leave');

let here = null; // The route that is shown.
let tag = ''; // Of the data that is shown.
let timer = 0;
let turn = 0; // Answers of older turns are dropped.

function say(words, bad = false) {
  if (state.textContent !== words) state.textContent = words;
  state.classList.toggle('bad', bad);
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
    tag = '';
    load();
  };
  put('Who are you?', [h('p', { class: 'bad', id: 'why' }, why),
    h('p', {}, 'This page shows what your Kubernetes token may list. To make one: '), h('pre', {}, 'kubectl create token ACCOUNT --duration 8h'),
    h('form', { id: 'ask', onsubmit: take }, h('label', {}, 'Token', field), h('button', { id: 'enter' }, 'Show'))]);
  document.getElementById('token').focus();
}

async function load() {
  clearTimeout(timer);
  const mine = ++turn;
  const wanted = here;
  if (!wanted) return;
  const token = sessionStorage.getItem(KEY);
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  if (tag) headers['if-none-match'] = tag;
  leave.hidden = !token;
  try {
    const answer = await fetch(wanted.data, { headers, cache: 'no-store' });
    if (mine !== turn) return;
    if (answer.status === 401) {
      const body = await answer.json();
      sessionStorage.removeItem(KEY);
      leave.hidden = true;
      say('');
      if (!document.getElementById('ask')) ask(token ? body.error : '');
      return;
    }
    if (answer.status !== 304) {
      const body = await answer.json();
      if (mine !== turn) return;
      if (answer.ok) {
        tag = answer.headers.get('etag') ?? '';
        put(...wanted.view(body, wanted));
      } else {
        tag = '';
        put('Nothing to show', [h('p', {}, body.error)]);
      }
    }
    say('Live');
  } catch (error) {
    if (mine !== turn) return;
    say('No answer: what is shown may be old', true);
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(load, EVERY);
}

function move(first) {
  const next = route(location.hash || '#/');
  const same = next && here && next.data.split('?')[0] === here.data.split('?')[0];
  here = next;
  tag = '';
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
  if (!same) {
    main.replaceChildren(h('p', {}, 'Loading…'));
    // Who goes to another page by keyboard begins at its top.
    if (!first) main.focus();
  }
  load();
}

leave.addEventListener('click', () => {
  sessionStorage.removeItem(KEY);
  main.replaceChildren();
  tag = '';
  load();
});
window.addEventListener('hashchange', () => { if (location.hash !== '#main') move(false); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) load(); });
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
move(true);
