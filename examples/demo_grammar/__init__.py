"""A small English-German grammar that writes a parallel corpus of any size, for demonstrations and tests.

A meaning is drawn at random (sampling) and worded in English and in German. The German has what makes translation
from English hard: gender, number and case with three sets of adjective endings, the verb at the end of subordinate
clauses, inversion after a fronted phrase, separable verbs, the frame of modal verb and infinitive or auxiliary and
participle, "kein" and "nicht", and numbers with the ones before the tens. The translation is a function: an English
sentence has one German wording.
"""
