"""Renderings: terminal text, HTML, timelines, pictures, TensorBoard, notebooks."""
