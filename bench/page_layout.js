// What is wrong with the layout of a page: text over text, cut off, outside the window. Text boxes are lines of text as
// they are seen: cut to what lies inside of everything around them that cuts.
(() => {
    const LEADING = 0.2; // of a line's height, above and below its letters
    const wide = document.documentElement, found = [];
    const name = (node) => {
        const { tagName, className } = node.parentElement;
        const text = node.textContent.trim().slice(0, 40);
        return `"${text}" in ${tagName.toLowerCase()}${typeof className === "string" && className ? `.${className}` : ""}`;
    };
    if (wide.scrollWidth > wide.clientWidth) found.push(`the page is ${wide.scrollWidth - wide.clientWidth} px wider than its window`);
    const boxes = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const holder = node.parentElement;
        if (!node.textContent.trim() || holder.closest(".skip, script, style, noscript, title, option, select")) continue;
        if (getComputedStyle(holder).visibility === "hidden" || !holder.checkVisibility()) continue;
        let left = 0, right = wide.clientWidth, top = -Infinity, bottom = Infinity, scrolls = false, shortens = false;
        for (let around = holder; around && around !== document.body; around = around.parentElement) {
            const its = getComputedStyle(around);
            if (its.overflowX === "visible" && its.overflowY === "visible") continue;
            const area = around.getBoundingClientRect();
            [left, right] = [Math.max(left, area.left), Math.min(right, area.right)];
            [top, bottom] = [Math.max(top, area.top), Math.min(bottom, area.bottom)];
            scrolls ||= its.overflowX === "auto" || its.overflowX === "scroll";
            shortens ||= its.textOverflow === "ellipsis";
        }
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const one of range.getClientRects()) {
            if (one.width < 1 || one.height < 1) continue;
            if ((one.left < left - 1 || one.right > right + 1) && !scrolls && !shortens) found.push(`cut off: ${name(node)}`);
            const seen = {
                node, left: Math.max(one.left, left), right: Math.min(one.right, right),
                top: Math.max(one.top + LEADING * one.height, top), bottom: Math.min(one.bottom - LEADING * one.height, bottom),
            };
            if (seen.right - seen.left > 1 && seen.bottom - seen.top > 1) boxes.push(seen);
        }
    }
    boxes.sort((one, other) => one.top - other.top);
    for (let at = 0; at < boxes.length; at++) {
        for (let next = at + 1; next < boxes.length && boxes[next].top < boxes[at].bottom - 1; next++) {
            const [one, other] = [boxes[at], boxes[next]];
            if (one.node === other.node || Math.min(one.right, other.right) - Math.max(one.left, other.left) < 2) continue;
            found.push(`over each other: ${name(one.node)} and ${name(other.node)}`);
        }
    }
    return [...new Set(found)];
})()
