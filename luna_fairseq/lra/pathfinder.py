"""Pathfinder, drawn anew: are the two dots ends of one dashed path? (Linsley et al., 2018; Tay et al., 2021)

After the published description and the settings that Long Range Arena names for 32 x 32 pixels: two long
paths of 14 dashes, distractors of 4 dashes, dots of radius 1.5. The images are not the published ones, nor
drawn by the published program, so that accuracies on them are not comparable with published ones.
"""

from __future__ import annotations

import math
import random
from typing import Iterator, List, Optional, Set, Tuple

import numpy as np

from luna_fairseq.lra.pixels import pillow

SIZE = 32
PADDING = 1.0
PATHS, PATH_DASHES = 2, 14
DISTRACTORS, DISTRACTOR_DASHES = 5, 4
DASH_LENGTH, DASH_GAP = 2.0, 1.0
DASH_THICKNESS = 0.5
# From dash to dash of one path, the direction changes by no more than this (radians).
LARGEST_TURN = math.pi / 4
# Between points of dashes that do not follow one another.
CLEARANCE = 1.75
SEED_DISTANCE = 7.0
DOT_RADIUS = 1.5
# Dots that touched would be one.
DOT_DISTANCE = 2 * DOT_RADIUS + 1
DASH_INTENSITY, DOT_INTENSITY = 191, 255
SUPERSAMPLING = 4
TRIES_PER_DASH, TRIES_PER_PATH = 12, 200
# What is taken is marked in cells of half a pixel.
CELLS_PER_PIXEL = 2

Point = Tuple[float, float]
Dash = Tuple[Point, Point]
Cell = Tuple[int, int]

_REACH = math.ceil(CLEARANCE * CELLS_PER_PIXEL)
_NEAR = [
    (x, y)
    for x in range(-_REACH, _REACH + 1)
    for y in range(-_REACH, _REACH + 1)
    if math.hypot(x, y) <= CLEARANCE * CELLS_PER_PIXEL
]


def draw_example(seed: str) -> Tuple[np.ndarray, int]:
    """A gray image, uint8 [32, 32], and 1 where the two dots are ends of one path, else 0; both are as
    likely. ``seed`` is that of the random generator."""
    generator = random.Random(seed)
    label = generator.randrange(2)
    while True:
        paths = _draw_field(generator)
        if paths is None:
            continue
        first, second = paths[0], paths[1]
        begin = first[0][0]
        end = first[-1][1] if label else generator.choice((second[0][0], second[-1][1]))
        if math.dist(begin, end) >= DOT_DISTANCE:
            return _render([dash for path in paths for dash in path], (begin, end)), label


def _draw_field(generator: random.Random) -> Optional[List[List[Dash]]]:
    """Two long paths and the distractors, or None when they found no room."""
    taken: Set[Cell] = set()
    paths: List[List[Dash]] = []
    for number in [PATH_DASHES] * PATHS + [DISTRACTOR_DASHES] * DISTRACTORS:
        other_seed = paths[0][0][0] if len(paths) == 1 else None
        path = _draw_path(generator, number, taken, other_seed)
        if path is None:
            return None
        paths.append(path)
        for dash in path:
            taken.update(_around(dash))
    return paths


def _draw_path(
    generator: random.Random, dashes: int, taken: Set[Cell], other_seed: Optional[Point]
) -> Optional[List[Dash]]:
    for _ in range(TRIES_PER_PATH):
        start = (generator.uniform(PADDING, SIZE - PADDING), generator.uniform(PADDING, SIZE - PADDING))
        if other_seed is None or math.dist(start, other_seed) >= SEED_DISTANCE:
            path = _grow(generator, start, dashes, taken)
            if path is not None:
                return path
    return None


def _grow(generator: random.Random, start: Point, dashes: int, taken: Set[Cell]) -> Optional[List[Dash]]:
    """A path of so many dashes from ``start``, clear of what is there and of itself, or None."""
    path: List[Dash] = []
    own: Set[Cell] = set()
    direction = generator.uniform(-math.pi, math.pi)
    for number in range(dashes):
        for _ in range(TRIES_PER_DASH):
            turned = direction + (generator.uniform(-LARGEST_TURN, LARGEST_TURN) if number else 0.0)
            begin = _ahead(path[-1][1], turned, DASH_GAP) if path else start
            dash = (begin, _ahead(begin, turned, DASH_LENGTH))
            cells = set(map(_cell, _points(dash)))
            if all(map(_is_inside, _points(dash))) and cells.isdisjoint(taken) and cells.isdisjoint(own):
                break
        else:
            return None
        if path:  # only now: the dash before is close by design
            own.update(_around(path[-1]))
        path.append(dash)
        direction = turned
    return path


def _ahead(point: Point, direction: float, distance: float) -> Point:
    return point[0] + distance * math.cos(direction), point[1] + distance * math.sin(direction)


def _points(dash: Dash) -> Tuple[Point, Point, Point]:
    """Both ends and the middle."""
    (x0, y0), (x1, y1) = dash
    return (x0, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x1, y1)


def _is_inside(point: Point) -> bool:
    return all(PADDING <= coordinate <= SIZE - PADDING for coordinate in point)


def _cell(point: Point) -> Cell:
    return int(point[0] * CELLS_PER_PIXEL), int(point[1] * CELLS_PER_PIXEL)


def _around(dash: Dash) -> Iterator[Cell]:
    """The cells in which no point of another dash may be."""
    for point in _points(dash):
        x, y = _cell(point)
        for dx, dy in _NEAR:
            yield x + dx, y + dy


def _render(dashes: List[Dash], dots: Tuple[Point, Point]) -> np.ndarray:
    PIL = pillow()
    image = PIL.Image.new("L", (SIZE * SUPERSAMPLING, SIZE * SUPERSAMPLING))
    draw = PIL.ImageDraw.Draw(image)
    for dash in dashes:
        ends = [tuple(SUPERSAMPLING * coordinate for coordinate in point) for point in dash]
        draw.line(ends, fill=DASH_INTENSITY, width=round(SUPERSAMPLING * DASH_THICKNESS))
    for x, y in dots:
        box = [x - DOT_RADIUS, y - DOT_RADIUS, x + DOT_RADIUS, y + DOT_RADIUS]
        draw.ellipse([SUPERSAMPLING * coordinate for coordinate in box], fill=DOT_INTENSITY)
    return np.asarray(image.resize((SIZE, SIZE), PIL.Image.Resampling.BOX))
