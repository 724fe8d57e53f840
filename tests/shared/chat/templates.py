"""Templates in the styles of published models, written anew: each uses what templates of its family use."""

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "header": """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start|>system<|end|>\\n\\n' + system + '<|eot|>' }}
{%- for message in rest %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}""",
    "instruction": """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant/user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]
{% else %} {{ message['content'] }}{{ eos_token }}
{% endif %}{% endfor %}""",
    "thinking": """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
  {%- if message.role == 'assistant' and '</think>' in message.content and loop.index0 < ns.last %}
    {%- set text = message.content.split('</think>')[-1].lstrip('\\n') %}
  {%- else %}
    {%- set text = message.content %}
  {%- endif %}
  {{- '<|im_start|>' ~ message.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    "generation": """\
{% for message in messages %}
{% if message.role == 'assistant' %}
A: {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else %}
{{ message.role | upper }}: {{ message.content }}
{% endif %}{% endfor %}
{% if add_generation_prompt %}A: {% endif %}""",
    "macro": """\
{% macro turn(role, text) -%}
<turn>{{ role if role != 'assistant' else 'model' }}
{{ text | trim }}<end>
{% endmacro %}
{% for message in messages %}{{ turn(message.role, message.content) }}{% endfor %}
{% if add_generation_prompt %}<turn>model
{% endif %}""",
    "json": """\
{% for message in messages %}{{ message | tojson }}
{% endfor %}{{ messages | map(attribute='role') | join(',') }}
{% for key, value in messages[0].items() %}{{ key }}={{ value | length }};{% endfor %}
{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}""",
    "loops": """\
{% for message in messages %}{% if loop.index > 3 %}{% break %}{% endif %}
{% if message.role == 'system' %}{% continue %}{% endif %}
{{ loop.index0 }}{{ '%s' | format(message.content) }}{{ message.get('name', '-') }}{{ '|' if not loop.last }}
{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}""",
}
