// Every table of figures is sorted by a click on a column's heading; figures by the first number in a cell.
;(() => {
  const first = text => parseFloat((text.replace(/−/g, "-").replace(/,(?=\d{3})/g, "").match(/-?\d[\d.]*(e-?\d+)?/i) || [])[0])
  const number = text => (isNaN(first(text)) ? -Infinity : first(text))
  Tablesort.extend("figure", text => /^\W{0,2}\d/.test(text.trim()), (a, b) => number(b) - number(a))
  for (const table of document.querySelectorAll("article table:not([class])")) new Tablesort(table)
})()
