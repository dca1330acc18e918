"""Embed sentences: https://sbert.net/docs/sentence_transformer/usage/usage.html, with torch.compile."""

from sentence_transformers import SentenceTransformer

model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
model.compile()

sentences = ["the food is good", "plants create food through a process", "it is a theory"]
embeddings = model.encode(sentences)
print(embeddings.shape)

similarities = model.similarity(embeddings, embeddings)
print(similarities.shape)
