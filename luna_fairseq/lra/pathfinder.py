"""Generation of Pathfinder images, in which a dashed path either connects two dots or does not.

The images follow the published description (Linsley et al., 2018), with the settings of Long Range Arena for
32 x 32 pixels (Tay et al., 2021): two long paths of 14 dashes, five distractors of 4 dashes, and dots of
radius 1.5. They are not drawn by the published program, so accuracies on these images are not comparable with
published accuracies.
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
# Maximum change of direction between consecutive dashes of a path, in radians.
MAX_TURN = math.pi / 4
# Minimum distance between points of two dashes that do not follow each other.
CLEARANCE = 1.75
# Minimum distance between the starting points of the two long paths.
START_DISTANCE = 7.0
DOT_RADIUS = 1.5
# Closer dots would merge.
DOT_DISTANCE = 2 * DOT_RADIUS + 1
DASH_INTENSITY, DOT_INTENSITY = 191, 255
SUPERSAMPLING = 4
TRIES_PER_DASH, TRIES_PER_PATH = 12, 200
# Occupied space is recorded in cells of half a pixel.
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
    """Draw a random Pathfinder image, uint8 [32, 32]. Return the image and its label.

    The label is 1 if the two dots are the ends of one path, and 0 if they are on different paths. Both labels
    are equally likely.
    """
    generator = random.Random(seed)
    label = generator.randrange(2)
    while True:
        paths = _draw_paths(generator)
        if paths is None:
            continue
        first, second = paths[0], paths[1]
        begin = first[0][0]
        end = first[-1][1] if label else generator.choice((second[0][0], second[-1][1]))
        if math.dist(begin, end) >= DOT_DISTANCE:
            return _render([dash for path in paths for dash in path], (begin, end)), label


def _draw_paths(generator: random.Random) -> Optional[List[List[Dash]]]:
    """Draw the dashes of two long paths, then of five distractors, so that no two paths touch.

    Return None if one of the paths does not fit.
    """
    occupied: Set[Cell] = set()
    paths: List[List[Dash]] = []
    for dashes in [PATH_DASHES] * PATHS + [DISTRACTOR_DASHES] * DISTRACTORS:
        other_start = paths[0][0][0] if len(paths) == 1 else None
        path = _draw_path(generator, dashes, occupied, other_start)
        if path is None:
            return None
        paths.append(path)
        for dash in path:
            occupied.update(_cells_near(dash))
    return paths


def _draw_path(
    generator: random.Random, dashes: int, occupied: Set[Cell], other_start: Optional[Point]
) -> Optional[List[Dash]]:
    """Draw the dashes of one path, or return None if it does not fit at any of 200 random starting points.

    The path does not touch the occupied grid cells, and begins at least 7 pixels from ``other_start``.
    """
    for _ in range(TRIES_PER_PATH):
        start = (generator.uniform(PADDING, SIZE - PADDING), generator.uniform(PADDING, SIZE - PADDING))
        if other_start is None or math.dist(start, other_start) >= START_DISTANCE:
            path = _grow_path(generator, start, dashes, occupied)
            if path is not None:
                return path
    return None


def _grow_path(
    generator: random.Random, start: Point, dashes: int, occupied: Set[Cell]
) -> Optional[List[Dash]]:
    """Draw the dashes of one path from a starting point, or return None if a dash does not fit."""
    path: List[Dash] = []
    own_cells: Set[Cell] = set()
    direction = generator.uniform(-math.pi, math.pi)
    for number in range(dashes):
        for _ in range(TRIES_PER_DASH):
            new_direction = direction + (generator.uniform(-MAX_TURN, MAX_TURN) if number else 0.0)
            begin = _move(path[-1][1], new_direction, DASH_GAP) if path else start
            dash = (begin, _move(begin, new_direction, DASH_LENGTH))
            cells = set(map(_to_cell, _sample_points(dash)))
            is_free = cells.isdisjoint(occupied) and cells.isdisjoint(own_cells)
            if is_free and all(map(_is_inside, _sample_points(dash))):
                break
        else:
            return None
        # The cells of the last dash are added late, because the next dash has to begin close to it.
        if path:
            own_cells.update(_cells_near(path[-1]))
        path.append(dash)
        direction = new_direction
    return path


def _move(point: Point, direction: float, distance: float) -> Point:
    """Move a point (x, y) by ``distance`` pixels in ``direction``, an angle in radians."""
    return point[0] + distance * math.cos(direction), point[1] + distance * math.sin(direction)


def _sample_points(dash: Dash) -> Tuple[Point, Point, Point]:
    """Return the first, middle and last point of a dash. Distances are checked between these points."""
    (x0, y0), (x1, y1) = dash
    return (x0, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x1, y1)


def _is_inside(point: Point) -> bool:
    """Return True if a point (x, y) is at least one pixel away from the border of the image."""
    return all(PADDING <= coordinate <= SIZE - PADDING for coordinate in point)


def _to_cell(point: Point) -> Cell:
    """Return the grid cell that contains a point (x, y). Cells are half a pixel wide."""
    return int(point[0] * CELLS_PER_PIXEL), int(point[1] * CELLS_PER_PIXEL)


def _cells_near(dash: Dash) -> Iterator[Cell]:
    """Yield the grid cells within 1.75 pixels of a dash. The same cell may occur more than once."""
    for point in _sample_points(dash):
        x, y = _to_cell(point)
        for dx, dy in _NEAR:
            yield x + dx, y + dy


def _render(dashes: List[Dash], dots: Tuple[Point, Point]) -> np.ndarray:
    """Render dashes and two dots, given by their centers, as a grayscale image, uint8 [32, 32]."""
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
