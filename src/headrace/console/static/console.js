// Start the scripts of a page: live updates, charts, times, tabs and following records.
import { live } from "./live.js";
import { charts } from "./chart.js";
import { tabs } from "./tabs.js";
import { tail } from "./tail.js";
import { times } from "./times.js";

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("headrace-theme", root.dataset.theme);
});

const main = document.getElementById("main");
charts(main);
times(main);
tabs(main);
const stream = live(main);
tail(stream);
