#!/usr/bin/env python3
"""Writes tests/data/chat_template/cases.json: templates, contexts and what Jinja makes of them.

The oracle is jinja2 itself, set up as transformers sets it up for chat templates: an immutable
sandbox, trim_blocks, lstrip_blocks, loop controls, a {% generation %} block, and its own tojson.
All templates here are written for this file; none is a model's own.

    python3 tools/make_template_cases.py            # writes the cases
    python3 tools/make_template_cases.py --fuzz N   # N random expressions against a driver, see below

A case is {"name", "template", "context"} and "output" or "error": true. "refused": true marks
templates that Jinja renders and Megalith refuses on purpose.
"""

import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = os.path.join(ROOT, "tests", "data", "chat_template", "cases.json")


class Generation(jinja2.ext.Extension):
    """{% generation %}: rendered as its content, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def render(template, context):
    """The output, or None where Jinja raises."""
    try:
        output = environment().from_string(template).render(**copy.deepcopy(context))
        output.encode()
        return output
    except Exception:
        return None


BASE = {
    "name": "Ada", "n": 7, "zero": 0, "half": 0.5, "neg": -3, "yes": True, "no": False,
    "nothing": None, "empty": "", "text": "  Grüße, Welt! 🙂  ", "words": "one two  three",
    "list": [3, 1, 2], "letters": ["b", "A", "c", "a"], "nested": [[1, [2]], {"k": [None, True]}],
    "dict": {"b": 1, "a": "x", "C": [1]}, "none_in": {"k": None},
    "people": [{"name": "Bo", "age": 3, "tags": ["x"]}, {"name": "al", "age": 5},
               {"name": "Cy", "age": 3, "tags": []}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"},
                 {"role": "assistant", "content": "Hello ä"}],
    "html": "<a href='x'>\"&\"</a>", "lines": "l1\nl2\n\nl4\n",
}

# Each is a template over BASE. Several small things per template keep the file short.
SMALL = [
    # Text and white space.
    "", "plain text\n", "plain\n\n", "a\r\nb\rc\n", "{{ name }}\n{{ n }}\n",
    "  {% if yes %}\n  x\n  {% endif %}\n  y", "  {{ name }}  \n  {# note #}  \n z",
    "a  {%- if yes -%}  b  {%- endif -%}  c", "a\n\n  {{- name -}}\n\n b", "{#- x -#}  a {# b -#}  c",
    "  {%+ if yes %}\nx{% endif +%}\ny", "{% raw %}{{ x }} {% if %}{% endraw %}\nz",
    "a {%- raw -%}  {{ }}  {%- endraw -%} b", "{%   if   yes   %}1{%else%}2{%endif%}",
    "x{% if yes %}  \n{% endif %}\n\ny", "\t{% set a = 1 %}\n\t{{ a }}\n", "{{ '}}' }}{{ \"%}\" }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}", "{% if yes -%}\n\n  a\n{%- else %}b{% endif %}!",
    "line {# multi\nline #}\nnext", "\u00a0{%- if yes %} x{% endif %}\u2003{{- name }}",
    "{{-5}}|{{+5}}|{{ -5 }}", "a {{ name }}{# c #}\n{{ n }}{#- d #}\nb",
    # Literals and printing.
    "{{ 1 }} {{ 1.0 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 123456789012345678 }} {{ 1e16 }} {{ 1e15 }}",
    "{{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 1e300 * 1e10 }}",
    "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ missing }}|",
    r"""{{ 'a\tb\\c\'d' }} {{ "x\"y\n" }} {{ '\x41\u00e9\U0001F642\101\d' }}""", "{{ 'a' 'b' \"c\" }}",
    "{{ [1, 'two', none, true, 2.5, [3]] }} {{ (1,) }} {{ () }} {{ (1, 2) }} {{ [] }} {{ {} }}",
    "{{ {'a': 1, 2: 'b', none: [1], true: 3.0} }} {{ {'x': missing} }}", "{{ 1, 2 }}",
    r"""{{ ['it\'s', "q\"", 'both \' "', 'a\nb\t\\', 'é🙂', '\x00\x7f\u200b\u00ad'] }}""",
    "{{ dict }} {{ nested }} {{ messages[0] }} {{ none_in }}",
    "{{ range(3) }} {{ range(1, 9, 2) }} {{ dict.keys() }} {{ dict.values() }} {{ dict.items() }}",
    # Operators.
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 2 * [1] }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ true + 1 }}",
    "{{ 'n=' ~ n ~ none ~ 1.5 ~ missing ~ [1] }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }}",
    "{{ 'a' < 'b' }} {{ 'é' > 'z' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }}",
    "{{ [1] == [1.0] }} {{ (1,) == [1] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ 1 != 2 }}",
    "{{ 'x' in 'axb' }} {{ 'q' not in 'axb' }} {{ 1 in list }} {{ 'a' in dict }} {{ none in [none] }}",
    "{{ 'x' in missing }} {{ missing == missing }} {{ missing == none }} {{ '' in '' }}",
    "{{ yes and name }} {{ no or 'other' }} {{ not yes }} {{ not missing }} {{ 0 or [] or 'z' }}",
    "{{ not 1 == 2 }} {{ not 'a' in 'b' }} {{ 1 if yes else 2 }} {{ 1 if no }}| {{ 'a' if no else 'b' if no else 'c' }}",
    "{{ (1 if no else 2) + 1 }} {{ -n }} {{ +n }} {{ - half }} {{ -n|abs }} {{ (-n)|abs }}",
    # Subscripts, slices, attributes.
    "{{ list[0] }} {{ list[-1] }} {{ list[9] }}| {{ 'Grüße'[2] }} {{ 'Grüße'[-1] }} {{ text[99] }}|",
    "{{ 'Grüße🙂'[1:4] }} {{ 'Grüße🙂'[::-1] }} {{ 'abc'[::2] }} {{ 'abc'[-2:] }} {{ 'abcdef'[4:1:-2] }}",
    "{{ list[1:] }} {{ list[:1] }} {{ list[::-1] }} {{ list[5:] }} {{ list[-9:2] }} {{ (1, 2, 3)[:2] }}",
    "{{ range(10)[2:8:3]|list }} {{ range(5)[-1] }} {{ list[none:2] }} {{ messages[1:][0].role }}",
    "{{ dict.b }} {{ dict['a'] }} {{ dict.missing }}| {{ dict['nope'] }}| {{ people.0.name }}",
    "{{ messages[0]['content'] }} {{ messages[-1].role }} {{ nothing.x }}| {{ n.x }}| {{ name.x }}|",
    "{{ {1: 'one'}[1] }} {{ {true: 't'}[1] }} {{ list['x'] }}| {{ dict[[1]] }}|",
    # Tests.
    "{{ name is defined }} {{ missing is defined }} {{ missing is undefined }} {{ dict.q is not defined }}",
    "{{ nothing is none }} {{ name is string }} {{ dict is mapping }} {{ list is mapping }} {{ n is number }}",
    "{{ list is iterable }} {{ n is iterable }} {{ name is sequence }} {{ dict is sequence }} {{ missing is iterable }}",
    "{{ n is integer }} {{ yes is integer }} {{ yes is number }} {{ half is float }} {{ yes is boolean }} {{ 1 is boolean }}",
    "{{ yes is true }} {{ 1 is true }} {{ no is false }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }}",
    "{{ n is eq 7 }} {{ n is equalto(8) }} {{ n is ne 7 }} {{ n is gt 6 }} {{ n is lt(3) }} {{ n is ge 7 }} {{ n is le 6 }} {{ 1 is in list }}",
    "{{ 'ab' is lower }} {{ 'AB' is upper }} {{ range is callable }} {{ name is callable }} {{ name is not string }}",
    "{{ 'a' if missing is defined and missing else 'b' }} {{ n + 1 is odd }} {{ (n + 1) is odd }} {{ x is not defined or n > 3 }}",
    # Statements.
    "{% if no %}1{% elif n == 7 %}2{% elif yes %}3{% else %}4{% endif %}", "{% if list, %}t{% endif %}",
    "{% for x in list %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in 'aé🙂' %}{{ loop.index }}{{ x }}{{ loop.revindex }}{% endfor %}",
    "{% for x in list %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}-{{ loop.nextitem }}\n{% endfor %}",
    "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}{% for k in dict %}{{ k }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}{% for x in missing %}x{% else %}-{% endfor %}",
    "{% for x in range(9) if x % 2 %}{{ loop.index }}:{{ x }}{{ '.' if loop.last }} {% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1] %}{% continue %}{% else %}else{% endfor %}{% for x in [1, 2] %}{% break %}{% else %}E{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in range(6) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}{{ ns.n }}",
    "{% for x in list %}{% for y in 'ab' %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}{% set a, b = 1, 'q' %}{{ a }}{{ b }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = [ns.a] %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.q }}| {{ ns['a'] }} {{ ns }}",
    "{% set t %}  a {{ n }}\n{% endset %}[{{ t }}]{% set t | trim | upper %} x {{ name }} {% endset %}[{{ t }}]",
    "{% macro m(a, b=2, c='z') %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}{{ m(b=1, a=0) }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{{ f(2)|length }}",
    "{% set g = 5 %}{% macro m(a, b=a) %}{{ g }}{{ a }}{{ b }}{% set g = 9 %}{{ g }}{% endmacro %}{{ m(1) }}{{ g }}{% set g = 6 %}{{ m(2) }}",
    "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in {{ n }}{% endcall %}",
    "{% macro each(l) %}{% for i in l %}{{ caller(i, b=1) }}{% endfor %}{% endmacro %}{% call(a, b) each(list) %}({{ a }}{{ b }}){% endcall %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 3 %}{{ a }}{% endwith %}{{ a }}", "{% filter upper|trim %}  ab {{ n }} {% endfilter %}",
    "{% set s = 0 %}x{% generation %}a{{ n }}{% set s = 1 %}{% endgeneration %}{{ s }}",
    "{{ dict(a=1, b='x') }} {{ dict({'q': 1}, r=2) }} {{ range(3)|list }} {{ range(5, 0, -2)|list }} {{ range(0) and 1 }}|",
    "{% for x in range(3) %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.revindex0 }}{% endfor %}{% if loop is defined %}bad{% endif %}",
    # Filters.
    "[{{ text|trim }}] [{{ 'xxaxx'|trim('x') }}] {{ 5|trim }} {{ name|upper }} {{ name|lower }} {{ 'é ß'|upper }} {{ missing|upper }}|",
    "{{ 'hELLO wORLD'|capitalize }} {{ \"it's a-b (c) <d> x_y\"|title }} {{ 'ÉA ΣΑΣ'|lower }} {{ 'x'|replace('x', 'y') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '-') }}",
    "{{ list|length }} {{ name|count }} {{ dict|length }} {{ missing|length }} {{ '🙂é'|length }} {{ range(4)|length }}",
    "{{ missing|default('d') }} {{ missing|d }}| {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ none|d('x', boolean=True) }} {{ 0|d(1) }}",
    "{{ list|join(', ') }} {{ list|join }} {{ people|join('-', attribute='name') }} {{ 'abc'|join('.') }} {{ [1, none, 'x']|join(1) }} {{ dict|join }}",
    "{{ list|first }} {{ list|last }} {{ []|first }}| {{ 'abc'|last }} {{ dict|first }} {{ missing|last }}|",
    "{{ 'abc'|list }} {{ dict|list }} {{ dict|items|list }} {{ missing|items|list }} {{ missing|list }} {{ (1, 2)|list }}",
    "{% for k, v in dict|items %}{{ k }}{{ v }}{% endfor %}{% for k, v in dict|dictsort %}{{ k }}={{ v }} {% endfor %}{{ {'b': 1, 'a': 2}|dictsort(by='value', reverse=true) }}",
    "{{ people|map(attribute='name')|join(',') }} {{ people|map(attribute='zip', default='-')|list }} {{ letters|map('upper')|list }} {{ people|map(attribute='tags.0')|list }}",
    "{{ people|selectattr('age', 'equalto', 3)|map(attribute='name')|list }} {{ people|rejectattr('tags')|list|length }} {{ people|selectattr('tags', 'defined')|list|length }}",
    "{{ range(6)|select('odd')|list }} {{ range(6)|reject('odd')|list }} {{ [0, 1, '', 'x']|select|list }} {{ list|select('>', 1)|list }} {{ list|select('in', [1, 2])|list }}",
    "{{ letters|sort }} {{ letters|sort(case_sensitive=true) }} {{ list|sort(reverse=true) }} {{ people|sort(attribute='age,name')|map(attribute='name')|list }}",
    "{{ letters|unique|list }} {{ [1, 2, 1, 1.0]|unique|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }} {{ list|min }} {{ list|max }} {{ letters|max }} {{ list|sum }} {{ people|sum(attribute='age') }}",
    "{{ list|reverse|list }} {{ 'abc'|reverse }} {% for x in list|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
    "{{ '42'|int }} {{ ' 4_2 '|int }} {{ '4.9'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ -3.9|int }} {{ none|int }} {{ yes|int }} {{ '1e3'|int }}",
    "{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ 'x'|float(default=2) }} {{ n|string ~ 1 }} {{ -3|abs }} {{ neg|abs }} {{ 'inf'|float }}",
    "{{ 2.5|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 5|round }} {{ 1.005|round(2) }} {{ -0.4|round }}",
    "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(2, blank=true) }}|{{ lines|indent('> ', first=true) }}|{{ ''|indent }}",
    "{{ html|safe }} {{ html }} {{ dict|string }} {{ html|safe ~ '<' }}",
    # tojson.
    "{{ dict|tojson }} {{ nested|tojson }} {{ text|tojson }} {{ html|tojson }} {{ half|tojson }} {{ 1e20|tojson }} {{ none|tojson }} {{ (1, 2)|tojson }}",
    "{{ dict|tojson(indent=2) }}\n{{ nested|tojson(indent=4) }}\n{{ []|tojson(indent=2) }}{{ {}|tojson(indent=2) }}",
    "{{ dict|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ text|tojson(ensure_ascii=true) }} {{ dict|tojson(indent=1, separators=(';', '=')) }}",
    r"{{ '\x00\x1f\x7f\b\f\n\r\t/\\\"'|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ '\u2028'|tojson }}",
    # Methods.
    "[{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] {{ 'xaxy'.strip('xy') }} {{ 'xxa'.lstrip('x') }} {{ 'a\\n\\n'.rstrip('\\n') }}",
    "{{ words.split() }} {{ words.split(' ') }} {{ words.split(' ', 1) }} {{ words.split(none, 1) }} {{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ words.rsplit(maxsplit=1) }}",
    "{{ name.startswith('A') }} {{ name.endswith(('x', 'da')) }} {{ name.startswith('') }} {{ name.upper() }} {{ name.lower() }} {{ \"it's ok\".title() }} {{ 'aB'.capitalize() }}",
    "{{ 'abcabc'.replace('b', 'X') }} {{ 'abcabc'.replace('b', '', 1) }} {{ 'Grüße'.find('ß') }} {{ 'x'.find('y') }} {{ 'abab'.rfind('ab') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'abc'.index('c') }}",
    "{{ ', '.join(letters) }} {{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'x.py'.removesuffix('.py') }}",
    "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \\t'.isspace() }} {{ 'AB1'.isupper() }} {{ '1'.islower() }} {{ 'é'.isascii() }}",
    "{{ dict.get('a') }} {{ dict.get('q') }} {{ dict.get('q', 0) }} {{ dict.keys()|list }} {{ dict.values()|list|length }} {{ 'a' in dict.keys() }} {{ dict.items()|list|first }} {{ list.index(1) }} {{ list.count(3) }} {{ dict.copy() == dict }}",
    "{{ people|map(attribute='name')|map('lower')|list }} {{ 'y' if people|selectattr('age', 'eq', 99) else 'n' }} {{ 'y' if people|selectattr('age', 'eq', 99)|list else 'n' }}",
    "{% set g = list|select %}{{ g|list }}{{ g|list }} {{ [1, 2]|map('string')|first }} {{ messages|map(attribute='role')|unique|list }}",
    "{{ '%s' }} {{ ('a', 'b')[1] }} {{ [1, 2,][1] }} {{ {'a': 1,}.a }} {{ (name) }} {{ 'abc'[1].upper() }} {{ name.lower().upper()[0] }} {{ (n ~ '').rstrip('7') }}|",
    # Blocks, self, loops that call themselves.
    "{{ self }} {{ self is defined }} {{ self.x is defined }}{% block x %}b{% set q = 1 %}{{ q }}{% endblock %}{{ self.x() }}{{ self['x']()|upper }}{{ self.y is defined }}",
    "{% set a = 1 %}{% for i in [1, 2] %}{% block x %}{{ a }}{{ i }}|{% endblock x %}{% block y scoped %}{{ a }}{{ i }}{{ loop.index }}{% set q = i %}{% endblock %}{{ q }}{% endfor %}",
    "{% block a %}{{ self.b() }}{% endblock %}{% block b %}B{{ c }}{% endblock %}{% if yes %}{% set c = 3 %}{% endif %}{{ self.a() }}{% set loop = 5 %}{{ loop }}",
    "{% with v = 1 %}{% block q %}{{ v }}{% endblock %}{% endwith %}{% macro m(v) %}{% block r scoped %}{{ v }}{% endblock %}{% endmacro %}{{ m(4) }}{{ self.r() }}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% else %}E{% endfor %}",
    "{% set o = 'o' %}{% for x in [1, [2, []]] recursive %}{{ o }}{% if x is number %}{{ x }}{% continue %}{% endif %}[{{ loop(x)|upper }}]{% else %}none{% endfor %}{% for x in list if x > 1 recursive %}{{ x }}{% endfor %}",
    "{% for x in 'abba' %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x) }}{{ loop }} {% endfor %}{% for x in list %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.depth }}{% endfor %}{% endfor %}",
    # Macros that take what they get.
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, b=4) }}{{ m(a=1) }}{{ m(*[1, 2], **{'q': 1}) }}{{ m(0, *'xy') }}{{ m() }}",
    "{% macro m(a, varargs=5, caller=6) %}{{ a }}{{ varargs }}{{ caller }}{% endmacro %}{{ m(1) }}{% call m(2) %}c{% endcall %}{% macro k() %}{{ kwargs.caller is defined }}{% endmacro %}{% call k() %}{% endcall %}",
    "{% macro o() %}<{{ caller() }}>{% endmacro %}{% macro m() %}{% call o() %}{{ caller is defined }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "{{ range(*[1, 7], **{}) | list }}{{ dict(**{'a': 1}) }}{{ 'a,b'.split(*[',']) }}{{ list | join(*['-']) }}",
    # Escaped text.
    "{{ '<a>'|e }} {{ (html|escape) + '<' }} {{ '<' + ('<'|e) }} {{ ['<'|e] }} {{ ('<'|e) ~ '<' }} {{ '<'|e|e }} {{ '<'|e|forceescape }} {{ '<'|e is escaped }} {{ 5|e }}",
    "{{ ('<b>'|safe|upper) + '<' }} {{ ('<b>'|safe|replace('b', 'c')) + '<' }} {{ ('<'|safe)[0] + '<' }} {{ (html|safe|trim) + '&' }} {{ ('<'|safe|tojson) + '<' }} {{ (['<'|e]|join) + '<' }} {{ ('<'|safe|default('x')) + '>' }}",
    "{{ '<p>a  <b>b</b> &amp; &lt;c&gt; &#65;&#x42;</p><!-- <x> -->\n d < e'|striptags }}|{{ 'a <!-- b'|striptags }}|{{ 'x & y'|striptags }}|{{ ''|striptags }}|{{ '<<!--a-->b>c'|striptags }}",
    # Layout and measure.
    "{{ 'x'|center(9) }}|{{ 'xy'.center(7, '*') }}{{ 'xy'.center(6, '*') }}{{ 'xyz'.center(6, '*') }}|{{ name|center }}|{{ 'ü'.ljust(3, '·') }}{{ 'ab'.rjust(5) }}{{ 'ab'.center(1) }}{{ '-5'.zfill(4) }}{{ '5'.zfill(3) }}",
    "{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '…', 0) }}|{{ 'äöü äöü äöü'|truncate(5, leeway=0) }}|{{ ''|truncate(3) }}",
    "{{ text|wordcount }} {{ 'a-b c_d é1 ²'|wordcount }} {{ ''|wordcount }} {{ 12.5|wordcount }}",
    "{{ '%-5s|%05.1f|%x|%c|%r|%%|%+d|% d|%#o|%.2s|%*d' | format('a', 3.14159, 255, 'q', 'z', 3, 4, 8, 'xyz', 4, 9) }} {{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%s' % name }} {{ '%s %s' % (1, none) }} {{ '%d' % 3.9 }}",
    "{{ '%(x)s'|format(x=1) }} {{ '%e %G %g %F' % (12345.678, 1e-10, 1e5, half) }} {{ '%5.3d|%-6d|%06d|%X' % (7, -7, -7, 171) }} {{ 'a' % [1] }} {{ '%s' % [1] }} {{ '%5s|%-5s|%05s' % ('é', 'é', 'é') }}",
    "{{ '{:>5}{x!r:<6}{{}}'.format(1, x='y') }} {{ '{0}{1}{0}'.format(1, 2) }} {{ '{} {}'.format('a', 2) }} {{ '{0[a]}{0.b}{1[0]}'.format({'a': 1, 'b': 2}, [3]) }} {{ '{:*^9}|{:05d}|{:+.2f}|{:,}|{:x}|{:#b}|{:.1%}|{:e}'.format('m', 42, 3.14159, 1234567, 255, 5, 0.256, 12345.6) }}",
    "{{ '{:{w}}|{:<{w}.2f}'.format('a', 2.5, w=6) }} {{ '{:.3}|{!s:>4}|{}'.format('abcdef', none, true) }} {{ '{:d}|{: d}|{:6}|{:<6}|{:06.1f}|{:6}'.format(true, 5, 5, 5, -2.55, 2.5) }} {{ '{:_}|{:c}|{:X}'.format(1234, 65, 171) }}",
    # Parts and groups.
    "{{ list|batch(2, 'x')|list }} {{ list|batch(2)|list }} {{ []|batch(3)|list }} {{ 'abcde'|batch(3)|map('join')|list }} {{ [1, 2]|batch(0)|list }}",
    "{{ range(5)|slice(3)|list }} {{ range(5)|slice(3, 'z')|list }} {{ []|slice(2)|list }} {{ [1]|slice(3, 0)|list }} {% for column in range(4)|slice(2) %}{{ column|sum }},{% endfor %}",
    "{{ people|groupby('age') }} {% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join('+') }} {% endfor %}{% for age, all in people|groupby('age') %}{{ age }}{{ all|length }}{% endfor %}",
    "{% for k, v in ['b', 'A', 'a', 'B']|groupby(0) %}{{ k }}{{ v }} {% endfor %}{% for k, v in ['b', 'A', 'a', 'B']|groupby(0, case_sensitive=true) %}{{ k }}{{ v }} {% endfor %}{{ people|groupby('zip', default='none')|first|first }}",
    # Objects.
    "{{ '{} {0}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 1 }}", "{{ 'a' % 1 }}", "{{ '{:q}'.format(1) }}",
    "{% set c = cycler(1, 2, 'x') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}{% set j = joiner() %}{{ j() }}a{{ j() }}b{{ j() }}{% set k = joiner('|') %}{% for x in list %}{{ k() }}{{ x }}{% endfor %}",
    "{{ none is sameas none }} {{ yes is sameas true }} {{ list is sameas list }} {{ list is sameas [3, 1, 2] }} {{ 1 is sameas true }} {{ n is sameas 7 }} {{ 'a' is sameas 'b' }} {{ missing is sameas missing }} {{ dict is not sameas none }} {{ yes is sameas name }} {{ name is sameas n }} {{ half is sameas list }}",
    "{{ dict|attr('b') }}| {{ (dict|attr('items'))()|list }} {{ missing is filter }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ people|map('attr', 'name')|list }} {% set ns = namespace(x=4) %}{{ ns|attr('x') }}{{ ns|attr('y') }}|",
    # Errors of Jinja that must be errors here.
    "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing + 1 }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{{ 1 in 'a' }}",
    "{{ 'a' < 1 }}", "{{ n() }}", "{{ missing() }}", "{{ dict|first.x }}", "{% for x in 5 %}{% endfor %}", "{{ n|length }}",
    "{{ missing|tojson }}", "{{ raise_exception('no') }}", "{{ list.append(1) }}", "{% set a, b = [1] %}", "{% set q.x = 1 %}",
    "{{ name|nope }}", "{{ name is nope }}", "{% if %}{% endif %}", "{% endif %}", "{% for x in list %}", "{{ name", "{{ 'a }}",
    "{% if yes %}", "{# x", "{% raw %}x", "{{ (1 }}", "{{ [1) }}", "{{ 1 2 }}", "{{ }}", "{% nope %}", "{% break %}", "{% set x %}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(q=2) }}", "{{ dict.items }}{% for x in dict.items %}{% endfor %}",
    "{{ ''.split('') }}", "{{ 'a'.join([1]) }}", "{{ range(1, 2, 0) }}", "{{ range(100001) }}", "{{ list|select('odd')|length }}", "{{ people|map|list }}",
    "{{ 'abc'[::0] }}", "{{ nothing[1:] }}", "{{ dict[1:] }}", "{{ '\\x4' }}", "{{ a.b.c }}", "{{ 1 if }}", "{% for x, y in [1] %}{% endfor %}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{% set true = 1 %}", "{{ name is string is string }}", "{{ 007 }}", "{% for loop in list %}{% endfor %}", "{{ {[1]: 2} }}",
    "{{ name ! }}", "{{ 'a'|replace('b') }}", "{{ name|trim('x', 'y') }}", "{{ list|sort(foo=1) }}", "{{ [1, 'a']|sort }}", "{{ [[1], [2]]|unique|list }}",
    "{{ 'abc'.index('q') }}", "{{ nothing|items|list }}", "{{ n|items|list }}", "{% call name %}{% endcall %}", "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}",
]

# Templates that Jinja renders and Megalith refuses, by name and line.
REFUSED = [
    "{% print name %}", "{{ 9223372036854775807 + 1 }}", "{{ 'abc'.swapcase() }}", "{{ 'ab' is sameas ('a' ~ 'b') }}",
    "{{ cycler('a') }}", "{{ list|select }}", "{{ name.upper }}", "{{ -2 ** zero }}", "{{ (name|safe).replace('A', '<') }}",
    "{{ '%s'|safe % '<' }}", "{{ '&copy;'|striptags }}", "{{ '{:09,}'.format(1234) }}", "{% block x required %}{% endblock %}",
]

CHATML = """\
{%- if tools %}
    {{- '<|turn|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n\\nSignatures are listed between <fns></fns>:\\n<fns>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</fns>\\n\\nAnswer a need for one with JSON between <call></call>:\\n<call>\\n{\\"name\\": ..., \\"arguments\\": ...}\\n</call><|end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|turn|>system\\n' + messages[0].content + '<|end|>\\n' }}
    {%- else %}
        {{- '<|turn|>system\\nYou are a careful helper.<|end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|turn|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|turn|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|turn|>user' }}
        {%- endif %}
        {{- '\\n<result>\\n' }}
        {{- message.content }}
        {{- '\\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
{%- endif %}
"""

PLAIN_CHATML = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|s|>system\nDefault.<|e|>\n' }}{% endif %}{{'<|s|>' + message['role'] + '
' + message['content'] + '<|e|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|s|>assistant
' }}{% endif %}"""

HEADERS = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and false %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2025" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is taken off the list, so that what follows can index the rest. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Setting: tools\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Respond with a call of one of:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|stop|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n'+ message['content'] | trim + '<|stop|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, please.") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|stop|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|head|>ipython<|/head|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|stop|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""

INST = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate: user, assistant, user, assistant ...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[Q] " + system_message + "\\n\\n" + message["content"] + "[/Q]" }}
        {%- else %}
            {{- "[Q] " + message["content"] + "[/Q]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("A call id has 9 characters!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULT] {"content": ' + content|string + "}[/RESULT]" }}
    {%- else %}
        {{- raise_exception("Unknown role: " + message["role"]) }}
    {%- endif %}
{%- endfor %}
"""

THINKING = """\
{%- macro show(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'text' -%}{{- part.text -}}{%- else -%}<image>{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = show(message.content) %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<|im|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|/im|>\\n' }}
    {%- else %}
        {{- '<|im|>' + message.role + '\\n' + content + '<|/im|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

SIGNATURES = """\
{%- macro type_of(spec) -%}
    {%- if spec.enum -%}
        {{ spec.enum | map('tojson') | join(' | ') }}
    {%- elif spec.type == "array" -%}
        {{ type_of(spec['items']) if spec['items'] is defined else 'any' }}[]
    {%- elif spec.type == "object" and spec.properties is defined -%}
        { {%- for key, sub in spec.properties | dictsort %} {{ key }}{{ '?' if key not in spec.required | default([]) }}: {{ type_of(sub) }}{{ ',' if not loop.last }}{% endfor %} }
    {%- elif spec.type is string -%}
        {{ {'integer': 'number', 'boolean': 'bool'}.get(spec.type, spec.type) }}
    {%- else -%}
        {{ spec.type | join(' | ') }}
    {%- endif -%}
{%- endmacro -%}
{{ bos_token }}<|dev|>
{% for tool in tools or [] %}
{%- set fn = tool.function %}
// {{ fn.description | default('no description', true) | replace('\n', ' ') }}
type {{ fn.name }} = (_: {{ type_of(fn.parameters) }}) => any;
{% endfor %}
<|/dev|>
{% for m in messages if m.role != 'system' %}
{% generation %}
<|{{ m.role }}|>{% if m.content is not none %}{{ m.content if m.content is string else m.content | map(attribute='text') | join('') }}{% endif %}{{ eos_token if m.role == 'assistant' }}
{% endgeneration %}
{% else %}
(no messages)
{% endfor %}
"""

TURNS = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Turns must alternate') }}{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<turn>' + role + '\n' + (first if loop.first else '') }}
{%- if message['content'] is string %}{{ message['content'] | trim }}{% elif message['content'] is iterable %}
{% for item in message['content'] %}{% if item['type'] == 'image' %}<img>{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}
{% else %}{{ raise_exception('Unknown content') }}{% endif %}{{ '</turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""

CHANNELS = """\
{#- Constructs of templates with channels and tools as signatures: what gpt-oss needs. -#}
{%- macro kind(spec, required=[], nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {{- kind(spec['items'], required) + "[]" -}}
        {%- else -%}
            {{- "any[]" -}}
        {%- endif -%}
        {%- if nullable -%}{{- " | null" -}}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.oneOf is defined -%}
        {%- for one in spec.oneOf -%}
            {{- kind(one, required, nullable=true) -}}
            {%- if not loop.last -%}{{- " or " -}}{%- endif -%}
        {%- endfor -%}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type in ["number", "integer"] -%}
        {{- "number" -}}
    {%- else -%}
        {{- spec.type if spec.type is string else "any" -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro signatures(name, tools) -%}
    {{- "## " + name + "\\n\\nnamespace " + name + " {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\n" }}
        {{- "type " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\\n" }}
            {%- for key, spec in tool.parameters.properties.items() %}
                {%- if spec.description %}{{- "// " ~ spec.description ~ "\\n" }}{%- endif %}
                {{- key }}
                {%- if key not in (tool.parameters.required or []) %}{{- "?" }}{%- endif -%}
                {{- ": " }}{{- kind(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined %}{{- ", // default: " ~ spec.default | tojson }}{%- endif -%}
                {{- ",\\n" if not loop.last else "\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else -%}
            {{- "() => any;\\n\\n" }}
        {%- endif %}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{%- set developer = "" %}
{%- set rest = messages %}
{%- if messages and messages[0].role in ["developer", "system"] %}
    {%- set developer = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- endif %}
{{- "<|start|>system<|message|>" + "Effort: " + (reasoning_effort if reasoning_effort is defined else "medium") }}
{%- if strftime_now is defined and false %}{{- strftime_now("%Y-%m-%d") }}{%- endif %}
{{- "<|end|>" }}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" + developer }}
    {%- if tools -%}{{- "# Tools\\n\\n" + signatures("functions", tools) }}{%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set ns = namespace(last_call=none, last_user=-1) %}
{%- for message in rest %}{%- if message.role == "user" %}{%- set ns.last_user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in rest -%}
    {%- if "content" in message and message.content is string and "<|channel|>analysis" in message.content %}
        {{- raise_exception("Give the analysis in its own field.") }}
    {%- endif %}
    {%- if message.role == "assistant" -%}
        {%- if message.tool_calls is defined and message.tool_calls -%}
            {%- set call = message.tool_calls[0].function if message.tool_calls[0].function else message.tool_calls[0] %}
            {%- if message.content and not loop.last %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant to=functions." ~ call.name ~ "<|channel|>commentary json<|message|>" }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- "<|call|>" }}
            {%- set ns.last_call = call.name %}
        {%- else %}
            {%- set future = namespace(final=false) %}
            {%- for later in rest[loop.index:] %}{%- if later.role == "assistant" and not future.final %}{%- set future.final = true %}{%- endif %}{%- endfor %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content.split("</think>")[-1].lstrip("\\n") + ("<|end|>" if future.final or loop.index0 < ns.last_user else "<|return|>") }}
            {%- set ns.last_call = none %}
        {%- endif %}
    {%- elif message.role == "tool" -%}
        {%- if ns.last_call is none %}{{- raise_exception("No call before the result of a tool.") }}{%- endif %}
        {{- "<|start|>functions." + ns.last_call }}{{- " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == "user" -%}
        {{- "<|start|>user<|message|>" + (message.content if message.content is string else message.content | selectattr("type", "equalto", "text") | map(attribute="text") | join) + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a place.\nMetric.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "e.g. \"Köln\""},
            "days": {"type": "array", "items": {"type": "integer"}},
            "unit": {"enum": ["C", "F"]}}, "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "now", "description": "", "parameters": {"type": ["object", "null"]}}},
]

CALLS = [{"id": "abc123def", "type": "function", "function": {
    "name": "get_weather", "arguments": {"place": "Köln <&> 'x'", "days": [1, 2], "deep": {"a": None, "b": 1.5}}}}]

CHATS = {
    "user": [{"role": "user", "content": "Hello 🙂"}],
    "system": [{"role": "system", "content": "  Short answers. "}, {"role": "user", "content": " Why?\n"}],
    "turns": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2 "},
              {"role": "user", "content": "Sure? 確か?"}],
    "tools": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
              {"role": "assistant", "content": "", "tool_calls": CALLS},
              {"role": "tool", "content": "{\"t\": 21}"}, {"role": "tool", "content": "sunny"},
              {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 21°."}],
    "wrong order": [{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " See "}, {"type": "image"}]}],
    "no content": [{"role": "user"}],
    "none": [],
}

LONG = {"chatml": CHATML, "plain chatml": PLAIN_CHATML, "headers": HEADERS, "inst": INST, "thinking": THINKING,
        "signatures": SIGNATURES, "turns": TURNS, "channels": CHANNELS}


def cases():
    result = []

    def add(name, template, context, **more):
        output = render(template, context)
        case = {"name": name, "template": template, "context": context, **more}
        if output is None:
            case["error"] = True
        elif not more:
            case["output"] = output
        result.append(case)

    for i, template in enumerate(SMALL):
        add(f"small {i}", template, "base")
    for i, template in enumerate(REFUSED):
        add(f"refused {i}", template, "base", refused=True)
    for long_name, template in LONG.items():
        for chat_name, messages in CHATS.items():
            context = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>",
                       "add_generation_prompt": messages[-1]["role"] == "user" if messages else True}
            if chat_name == "tools":
                context["tools"] = TOOLS
            if chat_name == "system":
                context["enable_thinking"] = False
            add(f"{long_name}: {chat_name}", long_name, context)
    return result


# render() looks names up here, so that the file holds each context and long template once.
def resolve(case):
    template = LONG.get(case["template"], case["template"])
    context = BASE if case["context"] == "base" else case["context"]
    return template, context


def write_cases():
    global render
    plain = render
    render = lambda template, context: plain(*resolve({"template": template, "context": context}))
    found = cases()
    render = plain
    os.makedirs(os.path.dirname(CASES), exist_ok=True)
    with open(CASES, "w", encoding="utf-8") as file:
        file.write('{"base": ' + json.dumps(BASE, ensure_ascii=False) + ',\n "long": ')
        file.write(json.dumps(LONG, ensure_ascii=False) + ',\n "cases": [\n')
        file.write(",\n".join(json.dumps(case, ensure_ascii=False) for case in found))
        file.write("\n]}\n")
    errors = sum("error" in case for case in found)
    print(f"{CASES}: {len(found)} cases, {errors} of them errors, {os.path.getsize(CASES)} bytes")


# --- random expressions ---------------------------------------------------------------------------

NAMES = ["name", "n", "zero", "half", "neg", "yes", "no", "nothing", "empty", "text", "words", "list",
         "letters", "dict", "people", "messages", "missing", "lines"]
LITERALS = ["0", "1", "2", "-1", "3", "1.5", "0.1", "'a'", "''", "'b c'", "'é🙂'", "' x '", "true", "none", "[]",
            "[1, 'a']", "(1, 2)", "{'a': 1}", "{}", "[none, 1.0]", "'a,b'", "[3, 1, 2]", "1e20", "'12'"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "list", "string", "tojson",
           "int", "float", "abs", "default('d')", "default(1, true)", "join('-')", "join", "replace('a', 'b')",
           "sort", "unique|list", "reverse|list", "items|list", "dictsort", "map('string')|list", "select|list",
           "reject('none')|list", "select('defined')|list", "map(attribute='name')|list", "round(1)", "min", "max",
           "sum", "tojson(indent=1)", "indent(2)", "selectattr('age', 'gt', 3)|list", "sort(attribute='age')",
           "map('upper')|join(',')", "select('string')|list", "count", "d", "safe", "map('length')|list", "e", "escape", "forceescape",
           "striptags", "wordcount", "center(9)", "truncate(6)", "truncate(5, true, '', 0)", "batch(2)|list", "batch(3, 'f')|list",
           "slice(2)|list", "slice(3, 0)|list", "groupby('age')", "groupby(0)", "groupby('name', default='?')|map('first')|list",
           "attr('name')", "attr('upper')", "format(1)", "format('a', 2.5)", "batch(2)|map('join', '+')|list"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
         "boolean", "true", "false", "odd", "even", "eq 1", "in [1, 'a']", "gt 0", "divisibleby 2", "lower", "upper",
         "callable", "ne none", "le 2", "sameas none", "sameas true", "escaped", "filter", "test", "sameas list"]
METHODS = [".strip()", ".split()", ".split(' ')", ".upper()", ".lower()", ".title()", ".startswith('a')", ".endswith(' ')",
           ".replace('e', 'E')", ".find('b')", ".items()|list", ".keys()|list", ".values()|list", ".get('a', 0)", ".name",
           ".content", ".0", ".splitlines()", ".capitalize()", ".lstrip('a ')", ".rstrip()", ".count('a')", ".x",
           ".center(7)", ".center(8, 'é')", ".ljust(5, '.')", ".rjust(6)", ".zfill(4)", ".format(1, 'x', a=2)", ".grouper", ".list",
           ".isdigit()", ".rsplit(' ', 1)", ".partition(' ')", ".index(1)", ".isalpha()", ".isupper()"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def expression(rng, depth):
    kind = rng.randrange(14) if depth > 0 else rng.randrange(2)
    sub = lambda: expression(rng, depth - 1)
    if kind == 0:
        return rng.choice(NAMES)
    if kind == 1:
        return rng.choice(LITERALS)
    if kind in (2, 3, 4):
        return f"{sub()} {rng.choice(BINARY)} {sub()}"
    if kind == 5:
        return f"({sub()})"
    if kind == 6:
        return f"{sub()}|{rng.choice(FILTERS)}"
    if kind == 7:
        return f"({sub()})|{rng.choice(FILTERS)}"
    if kind == 8:
        return f"({sub()}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 9:
        return f"({sub()}){rng.choice(METHODS)}"
    if kind == 10:
        bounds = [rng.choice(["", "", "0", "1", "-1", "2", "-3", "n"]) for _ in range(rng.choice([1, 2, 3]))]
        return f"({sub()})[{':'.join(bounds) or '0'}]" if len(bounds) > 1 else f"({sub()})[{bounds[0] or sub()}]"
    if kind == 11:
        return f"{sub()} if {sub()} else {sub()}"
    if kind == 12:
        return rng.choice(["not ", "-", "+"]) + sub()
    return rng.choice([f"[{sub()}, {sub()}]", f"{{'k': {sub()}}}", f"({sub()}, {sub()})"])


TEXT = ["a", " ", "  ", "\n", "\n\n", "\t", " b\n  ", "\r\n", "\u00a0", "}", "{", "%", "#", "-", "x y"]
STATEMENTS = ["if yes", "if no", "for x in list", "for k, v in dict.items()", "for x in list if x > 1", "set v = n",
              "else", "endif", "endfor", "set t", "endset", "macro m(a, b=1)", "endmacro", "break", "continue",
              "with q = 1", "endwith", "set ns = namespace(a=0)", "set ns.a = ns.a + 1", "elif n == 7", "filter upper",
              "endfilter", "block p", "block q scoped", "endblock", "for x in [1, [2, [3]]] recursive", "macro w(a)",
              "call(r) m(2, 3, z=4)", "set c = cycler(1, 2)", "set j = joiner()", "generation", "endgeneration", "set v = v ~ 'x'", "raw", "endraw", "call m(1)", "endcall"]
OUTPUTS = ["self.p()", "self.q() if self.q is defined", "loop(x) if x is iterable", "loop.cycle('a', n)", "loop.changed(x)", "c.next()",
           "c.current", "j()", "varargs", "kwargs", "w(1, 2, k=3)", "w(*[1, 2])", "self", "loop.depth", "r", "n", "x", "v", "t", "m(1)", "loop.index", "loop.last", "loop.nextitem", "ns.a", "k", "m", "q", "caller()"]


def layout(rng):
    """Random text and tags, with blocks closed in their order most of the time."""
    ends = {"if": "endif", "for": "endfor", "macro": "endmacro", "with": "endwith", "filter": "endfilter",
            "generation": "endgeneration", "block": "endblock", "set t": "endset", "raw": "endraw", "call": "endcall"}
    sign = lambda: rng.choice(["", "", "", "-", "+"])
    parts, open_ends = [], []
    for _ in range(rng.randrange(2, 14)):
        kind = rng.randrange(8)
        if kind < 3:
            parts.append(rng.choice(TEXT))
        elif kind == 3:
            parts.append("{{" + rng.choice(["", "-"]) + f" {rng.choice(OUTPUTS)} " + rng.choice(["", "-"]) + "}}")
        elif kind == 4:
            parts.append("{#" + sign() + rng.choice(["", " c ", "\n"]) + sign() + "#}")
        elif kind == 5 and open_ends:
            parts.append("{%" + sign() + f" {open_ends.pop()} " + sign() + "%}")
        else:
            statement = rng.choice(STATEMENTS)
            if statement.startswith(("end", "else", "elif")) and rng.randrange(3):
                continue
            parts.append("{%" + sign() + f" {statement} " + sign() + "%}")
            for start, end in ends.items():
                if statement.startswith(start):
                    open_ends.append(end)
    while open_ends:
        parts.append("{%" + sign() + f" {open_ends.pop()} " + sign() + "%}" + rng.choice(["", "\n", " ", "z"]))
    return "".join(parts)


def fuzz(driver, count, seed):
    """driver CASES RESULTS renders a JSON list of {"template", "context"} into {"output"} or {"error"}."""
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        body = expression(rng, rng.randrange(1, 5))
        if "**" in body and len(body) > 60:
            continue  # a power of a power takes Python for ever
        shape = rng.randrange(6)
        if shape > 3:
            body = layout(rng) + "."  # Jinja takes "{#" at the very end for an empty comment
        elif shape == 0:
            body = f"{{% for x in {body} %}}{{{{ loop.index }}}}{{{{ x }}}};{{% endfor %}}"
        elif shape == 1:
            body = f"  {{%- set v = {body} %}}\n {{{{ v }}}} {{{{- v is defined }}}}\n"
        else:
            body = f"{{{{ {body} }}}}"
        made.append(body)
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "cases.json"), os.path.join(folder, "results.json")
        with open(source, "w") as file:
            json.dump([{"template": t, "context": BASE} for t in made], file)
        subprocess.run([driver, source, result], check=True)
        with open(result) as file:
            results = json.load(file)
    tally = {"same": 0, "both fail": 0, "refused": 0, "WRONG": 0, "ONLY HERE": 0, "FAILS HERE": 0}
    env = environment()
    for template, got in zip(made, results):
        try:
            # A copy, since |indent appends to a list that it is given.
            output = env.from_string(template).render(**copy.deepcopy(BASE))
            output.encode()
        except Exception:
            output = None
        if output is None:
            verdict = "both fail" if "error" in got else "ONLY HERE"
        elif "error" in got:
            address = " object at 0x" in output or "<built-in" in output or "<bound" in output or "<function" in output
            unsupported = got["status"] in ("not supported", "limit exceeded")
            # Jinja folds constants with other rules: (1)[2:] is undefined, n[2:] an error.
            unsupported = unsupported or "cannot be sliced" in got["error"]
            verdict = "refused" if address or unsupported else "FAILS HERE"
        else:
            verdict = "same" if got["output"] == output else "WRONG"
        tally[verdict] += 1
        if verdict.isupper() and tally[verdict] <= 12:
            print(f"{verdict}: {template!r}\n  jinja {output!r}\n  here  {got!r}")
    print(len(made), tally)
    return tally["WRONG"] + tally["ONLY HERE"] + tally["FAILS HERE"] != 0


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--fuzz":
        sys.exit(fuzz(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1))
    write_cases()
