"""The template of conversations for models that have none: ChatML, with the assistant's answers marked.

It writes `<|im_start|>ROLE`, a line break, the content, `<|im_end|>` and a line break for each message, as OpenAI's
ChatML does (https://github.com/openai/openai-python/blob/v0.28.1/chatml.md); contents stay as they are.
"""

DEFAULT_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
"""What it needs in the vocabulary."""

DEFAULT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
