"""What a client may ask: OpenAI's fields, what each may be here, and the `unmask` object. A field that cannot be honoured accepts
only the value that changes nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Number = StrictInt | StrictFloat
Empty = Annotated[list[Any], Field(max_length=0)]
Text = StrictStr


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Link(Strict):
    url: Text = Field(description="a data: URL; links and paths are never opened")
    detail: Literal["auto", "low", "high"] | None = None


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: Link


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart | ImagePart]
    name: None = None
    refusal: None = None


class Unmask(Strict):
    """What OpenAI's API has no field for."""

    method: Text | None = Field(None, description="a name from `unmask methods`, or one the operator gave at start")
    settings: dict[str, Text | StrictBool | Number | None] = Field(
        {}, description="of the method: kappa, text, at, block, ..."
    )
    steps: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="T; by default the method's pace")
    cfg: Annotated[Number, Field(ge=0, le=1e4)] = Field(0, description="guidance scale")
    cache: Text | None = Field(None, description="a K/V cache, as `unmask generate --cache` takes it")
    infill: Text | None = Field(None, description="the response with [MASK*n] where n tokens are to be filled in")
    trace: StrictBool = Field(False, description="with stream: every step, as chunks without choices")


class StreamOptions(Strict):
    include_usage: StrictBool = False
    include_obfuscation: Literal[False] | None = None


class Common(Strict):
    model: Text | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="L, the response's length")
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = Field(None, description="absent: the method's, mostly 0")
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = Field(
        None, description="choice i is drawn with seed + i"
    )
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=4)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    unmask: Unmask | None = None
    user: Text | None = None
    # What cannot be honoured: only what changes nothing is accepted.
    top_p: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None


class Chat(Common):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="L, as max_tokens")
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    metadata: dict[str, Text] | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    response_format: TextFormat | None = None
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: StrictBool | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None


class TextFormat(Strict):
    type: Literal["text"]


class Completion(Common):
    prompt: Text | list[Text] | list[StrictInt] | list[list[StrictInt]] = Field(
        description="one prompt: text, or token ids"
    )
    suffix: Text | None = Field(None, description="infilling: the response stands between the prompt and this")
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorBody


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(BaseModel):
    """A finished chat or text completion; see OpenAI's reference for the choices."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage
    unmask: dict[str, Any]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class State(BaseModel):
    status: str


Chat.model_rebuild()
