// Update the page by one stream of server-sent events, closed while the page is hidden.
// Only visible rows are changed. Other rows wait until they are scrolled to.

const status = document.getElementById("live");
const statusText = document.getElementById("live-text");
const banner = document.getElementById("gone");

function say(state, text) {
  if (status.dataset.state === state) return;
  status.dataset.state = state;
  statusText.textContent = text;
}

export function live(main) {
  let places = new Map(); // key -> elements
  let seen = new WeakMap(); // row -> whether it is on the screen
  let waiting = new Map(); // row -> (element -> text)
  let source = null;
  let extra = "";
  let onRows = null;
  let fetching = false;

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      seen.set(entry.target, entry.isIntersecting);
      if (entry.isIntersecting && waiting.has(entry.target)) {
        for (const [element, text] of waiting.get(entry.target)) put(element, text);
        waiting.delete(entry.target);
      }
    }
  }, { rootMargin: "200px" });

  function find() {
    places = new Map();
    waiting = new Map();
    watcher.disconnect();
    for (const element of main.querySelectorAll("[data-k]")) {
      const key = element.dataset.k;
      if (places.has(key)) places.get(key).push(element);
      else places.set(key, [element]);
    }
    for (const row of main.querySelectorAll("tbody tr")) watcher.observe(row);
  }

  function put(element, text) {
    const name = element.dataset.a;
    if (!name) {
      if (element.textContent !== text) element.textContent = text;
      return;
    }
    if (element.getAttribute(name) === text) return;
    element.setAttribute(name, text);
    if (name === "class" && element.classList.contains("tile")) flash(element);
  }

  function flash(element) {
    element.classList.remove("moved");
    void element.offsetWidth; // restart the animation
    element.classList.add("moved");
  }

  function cells(changed) {
    for (const [key, text] of Object.entries(changed)) {
      for (const element of places.get(key) ?? []) {
        const row = element.closest("tr");
        if (row && seen.get(row) === false) {
          if (!waiting.has(row)) waiting.set(row, new Map());
          waiting.get(row).set(element, text);
        } else put(element, text);
      }
    }
    main.dispatchEvent(new CustomEvent("cells"));
  }

  // The structure of the page has changed: fetch it and replace its content.
  async function again() {
    if (fetching || main.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      const before = new Map([...main.querySelectorAll(".tile")].map((each) => [each.dataset.k, each.className]));
      const held = document.activeElement?.closest("[id]")?.id;
      main.replaceChildren(...fresh.childNodes);
      find();
      main.dispatchEvent(new CustomEvent("fresh"));
      if (held) document.getElementById(held)?.focus({ preventScroll: true });
      for (const tile of main.querySelectorAll(".tile")) {
        const was = before.get(tile.dataset.k)?.replace(" moved", "");
        if (was !== undefined && was !== tile.className) flash(tile);
      }
    } catch {
      // The stream reports a server that does not respond.
    } finally {
      fetching = false;
    }
  }

  function open() {
    if (source || document.hidden || !("live" in main.dataset)) return;
    source = new EventSource("/events?of=" + encodeURIComponent(location.pathname + location.search + extra));
    source.addEventListener("open", () => {
      say("on", "live");
      banner.hidden = true;
    });
    source.addEventListener("cells", (event) => cells(JSON.parse(event.data)));
    source.addEventListener("shape", again);
    source.addEventListener("rows", (event) => onRows?.(JSON.parse(event.data)));
    source.addEventListener("problem", (event) => {
      banner.textContent = JSON.parse(event.data);
      banner.hidden = false;
    });
    source.addEventListener("gone", () => {
      close();
      say("off", "gone");
      banner.textContent = "The subject of this page no longer exists, or your login has expired.";
      banner.hidden = false;
    });
    source.addEventListener("error", () => {
      say("off", "not connected");
      banner.textContent = "The server does not respond. The page shows its last figures and reconnects automatically.";
      banner.hidden = false;
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(open, 3000);
      }
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      say("paused", "paused");
    } else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  find();
  open();

  return {
    // Follow records from an offset on; without a query, update the page's cells again.
    follow(query, rows) {
      extra = query;
      onRows = rows;
      close();
      open();
    },
  };
}
