// One record: the command lines that made it, and its numbers.
function entriesOf(row) {
  return content.rows[row].evals.map((entry) => {
    const [number, own] = Array.isArray(entry) ? entry : [entry, null];
    return { ...JSON.parse(content.protocols[number]), ...(own === null ? {} : JSON.parse(own)) };
  });
}

const commandOf = (row) => content.rows[row].steps.map((number) => content.steps[number]).join(" |\n  ");

function openRecord(row) {
  const base = JSON.parse(content.rows[row].base);
  const command = commandOf(row);
  byId("record-title").textContent = [named(row), ...about(row, 1)].join(", ");
  const parts = [element("p", { id: "record-rank", text: openPlaces(row) })];
  if (command) {
    const button = element("button", { type: "button", text: "Copy", on: { click: () => copy(command, button) } });
    parts.push(element("h3", { text: "How it was made" }), element("div", { class: "command" }, element("pre", { id: "record-command", tabindex: 0 }, ...typed(command)), button));
  }
  parts.push(element("h3", { text: "Numbers" }), element("div", { class: "scroller small", tabindex: 0, role: "region", "aria-label": "Numbers" }, numbersOf(row)));
  parts.push(element("h3", { text: "The rest of the record" }),
    element("div", { class: "command" }, element("pre", { tabindex: 0, text: plainLines(JSON.stringify(base, null, 1)) })));
  byId("record-body").replaceChildren(...parts);
  byId("record").showModal();
  byId("record").scrollTop = 0;
}

const plainLines = (text) => text.split("\n").map(plain).join("\n");
const SHOWN_ELSEWHERE = new Set(["metric", "n", "value"]);

function numbersOf(row) {
  const told = new Map(entriesOf(row).map((entry) => [entry.metric, entry]));
  const lines = [];
  for (const metric of metrics) {
    const value = metric.values[row], entry = told.get(metric.name) ?? {};
    if (Number.isNaN(value) && !entry.reason) continue;
    const low = metric.lows ? metric.lows[row] : NaN;
    const settings = Object.entries(entry).filter(([key, one]) => !SHOWN_ELSEWHERE.has(key) && one !== null)
      .map(([key, one]) => key + " " + (typeof one === "object" ? JSON.stringify(one) : one)).join(", ");
    lines.push(element("tr", {}, element("th", { scope: "row", text: plain(metric.name) }), element("td", { text: figure(value) }),
      element("td", { class: "interval", text: Number.isNaN(low) ? "" : bracket(low, metric.highs[row]) }),
      element("td", { text: entry.n === undefined || entry.n === null ? "" : [entry.n].flat().join(", ") }),
      element("td", { class: "text", text: plain(settings) })));
  }
  const titles = ["metric", "value", "95 % interval", "n", "settings"].map((text) => element("th", { scope: "col", text, class: text === "settings" ? "text" : null }));
  return element("table", { class: "plain" }, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...lines));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("pre"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
