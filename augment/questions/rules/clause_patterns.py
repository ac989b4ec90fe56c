"""Regular expressions over the tags of a sentence: noun phrases, verb groups, and where clauses begin.

The letters are the tags that `tagging` explains.
"""

from __future__ import annotations

import re

_CORE = (
    r"D{0,2}(?:R+(?=[JCZ])|J&(?=J)|J,(?=J)|[CZ]&(?=[CZ])|[JCZNPQ'])*"
    r"(?:P~P+|[NPQZC]|(?<=[DJ])Y|(?<=[DJC'])J(?![NPQsbZCYG,]))"
)
_LATER = _CORE.replace("NPQ", "NPQsb")  # after the verb, an ambiguous form is a noun
_NAMED = rf"(?:Y(?:[&IK]Y)?|{_CORE})"
_PHRASE = rf"{_CORE}(?:[FI](?:Y|{_CORE}))*"
SUBJECT = re.compile(rf"(?:{_PHRASE}(?:(?:,{_CORE})*,?&{_PHRASE})?|U)")
LEAD = re.compile(rf"(?:[&k],?)?(?:R,|R(?=[IF])|(?:R?[I]{_NAMED}(?:F{_CORE})*)+,?|Y,)*")
LEAD_PHRASE = re.compile(rf"{_NAMED}(?:F{_CORE})*")
ASIDE = re.compile(r",[^,;:.]{1,15}(?=,)")
_ADVERBS = r"(?:T|R(?!R*[CZ]))*"
VERB = re.compile(
    rf"(?P<modal>A){_ADVERBS}(?:e{_ADVERBS}(?:X(?:&R*X)?|G)?|h{_ADVERBS}(?:n{_ADVERBS}(?:X|G)?|X)|v)"
    rf"|(?P<be>B){_ADVERBS}(?:gR*X|R*X(?:&R*X)?|G)?"
    rf"|(?P<have>H){_ADVERBS}(?:nR*(?:gR?X|X(?:&R*X)?|G)?|X(?:&R*X)?)"
    r"|(?P<do>o)T?R*v"
    r"|(?P<main>[VEsbH])"
)
OBJECT = re.compile(rf"{_LATER}(?:F(?:Y|{_LATER}))*")
BOTH = re.compile(rf"&(?!s){_LATER}(?:F(?:Y|{_LATER}))*")
PREDICATE = re.compile(r"R*[VBHAosbE]")
NEW_CLAUSE = re.compile(rf"[&k]?,?R*(?:(?:{SUBJECT.pattern}){PREDICATE.pattern}|[VBHAosE])")
ANY_VERB = re.compile("[VBHAosbE]")
SURE_CLAUSE = re.compile(rf"[&k]?,?R*(?:(?:{SUBJECT.pattern})R*[VBHAo]|UR*[sbE]|[VBHAoE])")
STARTS = re.compile(r";|,[&k]|,(?=U)")
OPENING = re.compile(r"(?:S|X|G|KR*v|I[GgU]|R[XG])")
