"""`/v1/conversations`: sessions that keep their id from turn to turn."""

import asyncio

from fastapi import Request
from starlette.responses import JSONResponse, Response

from transformers_xl.serve.protocol import ConversationRequest
from transformers_xl.serve.service import Service


class Conversations:
    """The endpoints of conversations. Turns of them are responses."""

    def __init__(self, service: Service):
        self.service = service

    async def create(self, request: Request) -> Response:
        body = await self.service.body(request, ConversationRequest)
        store = self.service.sessions("conversation")
        return JSONResponse(await asyncio.to_thread(store.create_conversation, body.metadata))

    async def retrieve(self, conversation_id: str) -> Response:
        store = self.service.sessions("id")
        return JSONResponse((await asyncio.to_thread(store.conversation, conversation_id))["conversation"])

    async def delete(self, conversation_id: str) -> Response:
        await asyncio.to_thread(self.service.sessions("id").delete, "conv", conversation_id)
        return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


__all__ = ["Conversations"]
